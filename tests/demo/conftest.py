"""Fixtures of the demo's tests: canned results, and skips where the real thing cannot run."""

from importlib.metadata import entry_points

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.demo import training
from headrace.demo.forecast import forecast, forecast_rings
from headrace.demo.scenario import SPEC, Comparison, RankHosts, rank_hosts
from headrace.demo.training import TrainingResult
from headrace.job.load import MachineLoad
from headrace.testbed import privileges
from tests.conformance import warm

IDLE = MachineLoad(seconds=60.0, processors=2, load_average=0.1)
BUSY = MachineLoad(seconds=60.0, processors=2, load_average=3.0)
GLOO_US = (410_000.0, 540_000.0, 150_000.0)
BUCKETS = (1_612_840, 2_103_296, 595_968)


@pytest.fixture
def backend_registered() -> None:
    """Fail where torch does not know the backend: the script itself imports no headrace."""
    if not entry_points(group="torch.backends", name="headrace"):
        pytest.fail("headrace is not installed, but torch finds its backend so: see make test")


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the demo's ranks forked from a process that has torch imported."""
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, warm.environment()[name])
    monkeypatch.setattr(training, "_JOB", warm.command("-m", "headrace.demo.train"))


@pytest.fixture
def namespaces() -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")


@pytest.fixture(scope="session")
def placement() -> RankHosts:
    return rank_hosts(SPEC, "interleaved")


@pytest.fixture(scope="session")
def book(placement: RankHosts) -> PlanBook:
    truth = SPEC.topology(placement.order)
    return build_book(
        truth, collectives=[Collective.ALLREDUCE], sizes=[64 << 10, 512 << 10, 2 << 20]
    )


def result(backend: str, step_us: float, **changes: object) -> TrainingResult:
    fields: dict[str, object] = {
        "backend": backend,
        "ranks": 4,
        "steps_us": (step_us - 10, step_us, step_us + 5000),
        "computes_us": (20_000.0, 30_000.0, 25_000.0),
        "bucket_bytes": BUCKETS,
        "allreduces_us": (140_000.0, 180_000.0, 52_000.0),
        "losses": (2.3, 1.2),
        "loss": 0.347187,
        "right": 339,
        "images": 360,
        "ranks_agree": True,
        **changes,
    }
    return TrainingResult(**fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="session")
def comparison(book: PlanBook) -> Comparison:
    return Comparison(
        gloo=result("gloo", 1_200_000.0, loss=0.3471871, allreduces_us=GLOO_US),
        headrace=result("headrace", 400_000.0),
        forecasts=tuple(forecast(book, BUCKETS)),
        rings=forecast_rings(SPEC.topology("interleaved"), BUCKETS),
        load=IDLE,
    )
