"""Run the demo's job on a testbed with one backend, and parse its output."""

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.collectives.plan.book import PlanBook
from headrace.errors import CommunicationError
from headrace.facades import public_value
from headrace.launch.roles import Message, Roles
from headrace.testbed import Testbed, rank_roles

WARM_UP = 2
"""Steps before the measured ones: DDP orders its buckets anew after the first."""

_SILENCE_S = 300.0
_JOB = (sys.executable, "-W", "ignore::FutureWarning", "-m", "headrace.demo.train")


@public_value("headrace.demo")
class TrainingResult:
    """Measurements of one run of the job, all at rank 0.

    Attributes
    ----------
    steps_us : the measured steps.
    computes_us : the same steps without DDP, on all ranks at once: computing alone.
    bucket_bytes : sizes of the buckets of gradients that DDP reduces.
    allreduces_us : for every bucket, one allreduce of its size with nothing else going on.
    losses : of rank 0's batch in every step, the warm-up's too.
    loss, right, images : on the held-out images.
    ranks_agree : whether all ranks ended with the same weights, bit by bit.
    """

    backend: str
    ranks: int
    steps_us: tuple[float, ...]
    computes_us: tuple[float, ...]
    bucket_bytes: tuple[int, ...]
    allreduces_us: tuple[float, ...]
    losses: tuple[float, ...]
    loss: float
    right: int
    images: int
    ranks_agree: bool

    @property
    def step_us(self) -> float:
        """Median time of a step."""
        return statistics.median(self.steps_us)

    @property
    def compute_us(self) -> float:
        """Median time of a step's computing."""
        return statistics.median(self.computes_us)

    @property
    def network_share(self) -> float:
        """The share of a step that computing does not explain, 0 to 1."""
        return max(0.0, 1 - self.compute_us / self.step_us)

    @property
    def allreduce_us(self) -> float:
        """The time of the allreduces of all buckets, one after another."""
        return sum(self.allreduces_us)


def run_training(
    testbed: Testbed,
    rank_hosts: Sequence[str],
    backend: str,
    steps: int,
    book: PlanBook | None = None,
    *,
    on_step: Callable[[int, int, float], None] | None = None,
) -> TrainingResult:
    """Train on a testbed that is up, one process per rank.

    Parameters
    ----------
    rank_hosts : name of every rank's host.
    backend : for `torch.distributed`: "gloo" or "headrace".
    steps : number of measured steps, after `WARM_UP`.
    book : plans for "headrace"; without it the backend uses templates.
    on_step : called with the steps done, the steps in all (both with the warm-up), the last loss.

    Raises
    ------
    TestbedError : a host is not of this testbed.
    CommunicationError : the job failed; with the last lines of a rank that did.
    """
    names = [host.name for host in testbed.hosts]
    order = [names.index(testbed.host(name).name) for name in rank_hosts]
    argv = [*_JOB, "--backend", backend, "--steps", str(steps), "--warm-up", str(WARM_UP)]
    # in the testbed's own directory, which goes when it does
    path = testbed.record.directory / "demo.book"
    if book is not None:
        book.save(path)
    roles = rank_roles(testbed, argv, order, _environment(path if book is not None else None))
    events: dict[str, list[Message]] = {"step": [], "weights": [], "result": []}
    what = f"training on {backend}"
    with Roles(dict(enumerate(roles))) as ranks:
        while reported := ranks.expect(what, _SILENCE_S):
            event = reported[1]
            events.setdefault(event.get("event", ""), []).append(event)
            if event.get("event") == "step" and on_step is not None:
                on_step(len(events["step"]), steps + WARM_UP, event["loss"])
    if not events["result"]:
        raise CommunicationError(f"{what} failed: all ranks ended without a result")
    return _result(backend, len(order), **events)


def _environment(book: Path | None) -> dict[str, str | None]:
    return {
        "OMP_NUM_THREADS": "1",
        "HEADRACE_MEASURE": "off",
        "HEADRACE_PLAN_BOOK": None if book is None else str(book),
    }


def _result(
    backend: str,
    ranks: int,
    step: list[Message],
    weights: list[Message],
    result: list[Message],
    **_others: list[Message],
) -> TrainingResult:
    """Return the result from the ranks' events; all rank 0's but the digests of weights."""
    [result_event] = result
    digests = [event["digest"] for event in weights]
    return TrainingResult(
        backend=backend,
        ranks=ranks,
        steps_us=tuple(event["us"] for event in step[WARM_UP:]),
        computes_us=tuple(result_event["compute_us"]),
        bucket_bytes=tuple(result_event["bucket_bytes"]),
        allreduces_us=tuple(result_event["allreduce_us"]),
        losses=tuple(event["loss"] for event in step),
        loss=result_event["loss"],
        right=result_event["right"],
        images=result_event["images"],
        ranks_agree=len(digests) == ranks and len(set(digests)) == 1,
    )
