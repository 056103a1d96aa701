"""The demo from beginning to end: build, measure, plan, train twice, compare."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.collectives.plan.book import PlanBook, build_book
from headrace.demo.forecast import AllreduceForecast, RingForecast, forecast, forecast_rings
from headrace.demo.training import TrainingResult, run_training
from headrace.errors import HeadraceError, InputError
from headrace.job.load import LoadWatch, MachineLoad
from headrace.testbed import Testbed, TestbedSpec

if TYPE_CHECKING:
    from headrace.collectives.measure import Profile

SPEC = TestbedSpec.from_table(
    {
        "name": "demo",
        "defaults": {"host_rate": "400mbit", "uplink_rate": "100mbit"},
        "racks": [{"hosts": 2}, {"hosts": 2}],
    }
)
STEPS = 14

LOSS_TOLERANCE = 1e-5
"""Relative: sums in another order round otherwise, and training carries that on.

Gradients of 4, 5 and 8 ranks, summed in three orders, left the losses 2.0e-7 apart after 16 steps,
and 2.4e-7 after 100.
"""

IMAGE_TOLERANCE = 1
"""Held-out images that may be classified otherwise: those whose best two labels are a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHosts:
    """Host of every rank; `seed` repeats the draw, None where it was not drawn."""

    order: tuple[int, ...]
    hosts: tuple[str, ...]
    racks: tuple[str, ...]
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """The two runs of the job, and the plan book's predictions.

    Attributes
    ----------
    forecasts : of headrace's allreduces.
    rings : of Gloo's, in this order of the ranks and in others.
    load : of the machine ahead of the demo, whose own ranks share its processors.
    """

    gloo: TrainingResult
    headrace: TrainingResult
    forecasts: tuple[AllreduceForecast, ...]
    rings: RingForecast
    load: MachineLoad

    @property
    def speed_up(self) -> float:
        """Step time on Gloo over that on headrace."""
        return self.gloo.step_us / self.headrace.step_us

    @property
    def predicted_us(self) -> float:
        """Predicted time of the allreduces of all buckets, one after another."""
        return sum(forecast.predicted_us for forecast in self.forecasts)

    @property
    def bound_us(self) -> float:
        """Lower bound of the same."""
        return sum(forecast.bound_us for forecast in self.forecasts)

    @property
    def loss_difference(self) -> float:
        """Difference of the losses on held-out images, relative to Gloo's."""
        return abs(self.headrace.loss - self.gloo.loss) / abs(self.gloo.loss)

    def check(self) -> None:
        """Raise HeadraceError unless both runs trained the same network."""
        for run in (self.gloo, self.headrace):
            if not run.ranks_agree:
                raise HeadraceError(f"{run.backend}: the ranks ended with different weights")
        if self.loss_difference > LOSS_TOLERANCE:
            raise HeadraceError(
                f"the loss is {self.gloo.loss!r} on gloo and {self.headrace.loss!r} on headrace: "
                f"they differ by {self.loss_difference:.1e}, rounding explains {LOSS_TOLERANCE:g}"
            )
        if abs(self.headrace.right - self.gloo.right) > IMAGE_TOLERANCE:
            raise HeadraceError(
                f"of {self.gloo.images} images {self.gloo.right} are classified right on gloo and "
                f"{self.headrace.right} on headrace: rounding explains {IMAGE_TOLERANCE}"
            )


class Observer(Protocol):
    """Callbacks for the stages of the demo; see `headrace.demo.show.Show`."""

    def built(self, testbed: Testbed, placement: RankHosts) -> None: ...
    def progress(self, what: str, fraction: float) -> None: ...
    def measured(self, profile: "Profile", testbed: Testbed, placement: RankHosts) -> None: ...
    def planned(self, book: PlanBook, took_s: float) -> None: ...
    def step(self, backend: str, done: int, total: int, loss: float) -> None: ...
    def trained(self, result: TrainingResult, took_s: float) -> None: ...
    def compared(self, comparison: Comparison, *, paced: bool) -> None: ...


def rank_hosts(spec: TestbedSpec, order: str | Sequence[int], seed: int = 0) -> RankHosts:
    """Return the host of every rank, in a random order by the seed.

    Raises
    ------
    TestbedError : naming what is wrong with the order.
    InputError : the order has fewer than two ranks.
    """
    indices = spec.order(order, seed=seed)
    if len(indices) < 2:
        raise InputError(f"order is {order!r}, one rank: the demo needs at least two ranks")
    return RankHosts(
        order=tuple(indices),
        hosts=tuple(spec.hosts[index].name for index in indices),
        racks=tuple(spec.racks[spec.hosts[index].rack].name for index in indices),
        seed=seed if order == "random" else None,
    )


def run_demo(
    observer: Observer,
    *,
    spec: TestbedSpec = SPEC,
    order: str | Sequence[int] = "random",
    seed: int = 0,
    steps: int = STEPS,
    fallback: bool | None = None,
    save: Path | None = None,
) -> Comparison:
    """Build a testbed, measure it, plan for it, and train on it with Gloo and with headrace.

    Parameters
    ----------
    save : a folder for the profile and the plan book; made before everything else.

    Raises
    ------
    InputError : the folder cannot be made.
    TestbedError : the testbed cannot be built.
    CommunicationError : measuring or training failed.
    HeadraceError : the two runs did not train the same network.
    """
    # measuring needs the native module, the rest of the demo does not
    from headrace.collectives.measure.launch import measure_testbed

    placement = rank_hosts(spec, order, seed)
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{save}: no folder can be made: {error.strerror}") from error
    watch = LoadWatch()
    with Testbed.up(spec, fallback=fallback) as testbed:
        observer.built(testbed, placement)
        profile = measure_testbed(testbed, placement.hosts, progress=observer.progress)
        observer.measured(profile, testbed, placement)
        started = time.perf_counter()
        book = build_book(profile.topology, groups=profile.groups, progress=observer.progress)
        observer.planned(book, time.perf_counter() - started)
        if save is not None:
            profile.save(save / "demo.profile")
            book.save(save / "demo.book")
        results = [
            _train(testbed, placement, backend, steps, book, observer)
            for backend in ("gloo", "headrace")
        ]
        paced = not testbed.is_fallback
    comparison = Comparison(
        gloo=results[0],
        headrace=results[1],
        forecasts=tuple(forecast(book, results[1].bucket_bytes)),
        rings=forecast_rings(profile.topology, results[0].bucket_bytes),
        # the ranks keep the processors busy themselves: what this thread waited says nothing
        load=replace(watch.load(), waited_share=None),
    )
    observer.compared(comparison, paced=paced)
    comparison.check()
    return comparison


def _train(
    testbed: Testbed,
    placement: RankHosts,
    backend: str,
    steps: int,
    book: PlanBook,
    observer: Observer,
) -> TrainingResult:
    started = time.perf_counter()
    observer.progress(f"training on {backend}: starting {len(placement.hosts)} ranks", 0.0)
    result = run_training(
        testbed,
        placement.hosts,
        backend,
        steps,
        book if backend == "headrace" else None,
        on_step=lambda done, total, loss: observer.step(backend, done, total, loss),
    )
    observer.trained(result, time.perf_counter() - started)
    return result
