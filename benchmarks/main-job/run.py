"""The main job: allreduce on an uneven network, from measuring it to running the plan.

On a testbed of 2 racks x 2 hosts (400 Mbit/s hosts, 100 Mbit/s uplinks), for orders of ranks over
hosts: measure, plan, run, compare with Gloo, with the prediction and with the cut bound.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Options, Report, arguments
from benchmarks.ranks import KIB, MIB, Case, time_cases
from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.portfolio import predict_us
from headrace.demo import run_training
from headrace.testbed import Testbed, TestbedSpec

FOLDER = Path(__file__).resolve().parent
SPEC = FOLDER.parent.parent / "examples" / "testbed-2x2.toml"
RACK_ORDER, INTERLEAVED = (0, 1, 2, 3), (0, 2, 1, 3)
RANKS = 4
THROUGH_TORCH = {"gloo": None, "headrace": None}
TRAINING_STEPS = 12

BARS = {
    "allreduce-16MiB-of-limit": ">=0.93",
    "allreduce-4MiB-of-limit": ">=0.90",
    "over-gloo-rack-order-16MiB": ">=1.5",
    "over-gloo-interleaved-16MiB": ">=3",
    "demo-step-over-gloo-interleaved": ">=1.8",
    "allreduce-1KiB-native-ms": "<=0.25",
    "allreduce-1KiB-torch-of-gloo": "<=0.3333",
    "prediction-error-allreduce": "<=0.15",
    "prediction-error-others": "<=0.15",
    "loopback-64MiB-over-gloo": ">=1",
    "measure-and-plan-s": "<=15",
}
NOT_IN_QUICK = frozenset(
    {
        "over-gloo-rack-order-16MiB",
        "demo-step-over-gloo-interleaved",
        "prediction-error-others",
    }
)


def allreduce(size: int, repeats: int, warm_up: int = 1) -> Case:
    """Return an allreduce case."""
    return Case(collective=Collective.ALLREDUCE, bytes=size, repeats=repeats, warm_up=warm_up)


def size_text(size: int) -> str:
    """Return a size as people write it."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def order_text(order: Sequence[int]) -> str:
    """Return the host of rank 0, 1, ... in one word."""
    return "".join(map(str, order))


def mbit_per_s(size: int, time_us: float) -> float:
    """Algorithm bandwidth: bytes of the buffer over the time, in 10^6 bit/s."""
    return size * 8 / time_us


class MainJob:
    """The benchmark's state while it runs: the report, the testbed, the worst figures so far."""

    def __init__(self, report: Report, testbed: Testbed, options: Options, folder: Path) -> None:
        self.report = report
        self.testbed = testbed
        self.quick = options.quick
        self.folder = folder
        self.of_limit: dict[int, list[float]] = {16 * MIB: [], 4 * MIB: []}
        self.latency_ms: list[float] = []
        self.errors: dict[bool, list[float]] = {True: [], False: []}
        self.preparing_s: list[float] = []

    def prepare(self, order: Sequence[int]) -> PlanBook:
        """Measure, group and plan for one order of ranks."""
        hosts = self.testbed.hosts
        start = time.monotonic()
        profile = measure_testbed(self.testbed, [hosts[index].name for index in order])
        measured = time.monotonic()
        book = build_book(profile.topology, groups=profile.groups)
        done = time.monotonic()
        self.preparing_s.append(done - start)
        racks = {}
        for rank, index in enumerate(order):
            racks.setdefault(hosts[index].rack, []).append(rank)
        found = sorted(sorted(group) for group in profile.groups)
        self.report.row(
            "measuring and planning",
            order=order_text(order),
            measure_s=round(measured - start, 2),
            plan_s=round(done - measured, 2),
            racks_found=str(found),
            truth=str(sorted(racks.values())),
        )
        book.save(self.book_path(order))
        return book

    def book_path(self, order: Sequence[int]) -> Path:
        """Return where the plan book for `order` is kept."""
        return self.folder / f"{order_text(order)}.book"

    def native(self, order: Sequence[int], book: PlanBook, cases: Sequence[Case]) -> None:
        """Time the native executor and compare with the prediction and the bound."""
        truth = self.testbed.spec.topology(order)
        results = time_cases(self.testbed, order, {"native": self.book_path(order)}, cases)
        for case, times in zip(cases, results, strict=True):
            measured = times["native"]
            plan = book.choose(case.collective, case.bytes)
            assert plan is not None
            predicted = predict_us(plan.program, book.topology, case.bytes)
            bound = lower_bound(
                truth, Demand(collective=case.collective, ranks=RANKS), case.bytes
            ).bandwidth_us
            error = predicted / measured - 1
            if case.bytes >= 64 * KIB:
                self.errors[case.collective is Collective.ALLREDUCE].append(abs(error))
            fraction = bound / measured
            if case.collective is Collective.ALLREDUCE:
                if case.bytes in self.of_limit:
                    self.of_limit[case.bytes].append(fraction)
                if case.bytes == KIB:
                    self.latency_ms.append(measured / 1e3)
            self.report.row(
                "native executor",
                order=order_text(order),
                collective=case.collective.value,
                size=size_text(case.bytes),
                plan=f"{plan.generator} x{plan.program.demand.chunks}",
                measured_ms=round(measured / 1e3, 3),
                mbit_per_s=round(mbit_per_s(case.bytes, measured), 2),
                of_limit=round(fraction, 3),
                predicted_ms=round(predicted / 1e3, 3),
                error=f"{error:+.1%}",
            )

    def torch(self, order: Sequence[int], sizes: Sequence[Case]) -> dict[int, float]:
        """Time Gloo and headrace through torch in turn; returns Gloo's time over ours, by size."""
        results = time_cases(
            self.testbed, order, THROUGH_TORCH, sizes, torch_book=self.book_path(order)
        )
        ratios = {}
        for case, times in zip(sizes, results, strict=True):
            ratios[case.bytes] = times["gloo"] / times["headrace"]
            self.report.row(
                "through torch",
                order=order_text(order),
                size=size_text(case.bytes),
                gloo_ms=round(times["gloo"] / 1e3, 3),
                headrace_ms=round(times["headrace"] / 1e3, 3),
                gloo_mbit_per_s=round(mbit_per_s(case.bytes, times["gloo"]), 2),
                headrace_mbit_per_s=round(mbit_per_s(case.bytes, times["headrace"]), 2),
                over_gloo=round(ratios[case.bytes], 2),
            )
        return ratios

    def loopback(self, size: int, repeats: int) -> float:
        """Four ranks on one host: Gloo's time over ours through torch, without a plan book."""
        one_host = [0] * RANKS
        (times,) = time_cases(self.testbed, one_host, THROUGH_TORCH, [allreduce(size, repeats)])
        for name, measured in times.items():
            self.report.row(
                "one host, loopback",
                backend=name,
                size=size_text(size),
                measured_ms=round(measured / 1e3, 2),
                gbit_per_s=round(mbit_per_s(size, measured) / 1e3, 2),
            )
        return times["gloo"] / times["headrace"]

    def demo(self) -> float:
        """Train as the demo does, with interleaved ranks: Gloo's step time over ours."""
        hosts = [self.testbed.hosts[index].name for index in INTERLEAVED]
        book = PlanBook.load(self.book_path(INTERLEAVED))
        gloo = run_training(self.testbed, hosts, "gloo", TRAINING_STEPS)
        ours = run_training(self.testbed, hosts, "headrace", TRAINING_STEPS, book)
        if abs(gloo.loss - ours.loss) > 1e-3 * max(1.0, abs(gloo.loss)):
            raise RuntimeError(f"the losses differ: {gloo.loss} on Gloo, {ours.loss} on headrace")
        for result in (gloo, ours):
            self.report.row(
                "training step, interleaved, real compute",
                backend=result.backend,
                step_ms=round(statistics.median(result.steps_us) / 1e3, 1),
                compute_ms=round(statistics.median(result.computes_us) / 1e3, 1),
                held_out_loss=round(result.loss, 6),
                right=f"{result.right} of {result.images}",
            )
        return statistics.median(gloo.steps_us) / statistics.median(ours.steps_us)


def run(job: MainJob) -> None:
    """Run everything and hand the bars their figures as soon as they are known."""
    report, quick = job.report, job.quick
    all_orders = list(itertools.permutations(range(RANKS)))
    orders = [INTERLEAVED] if quick else all_orders
    main_orders = {INTERLEAVED} if quick else {RACK_ORDER, INTERLEAVED}
    sizes = [
        allreduce(KIB, 400, 50),
        allreduce(4 * MIB, 3),
        allreduce(16 * MIB, 1 if quick else 3, 0 if quick else 1),
    ]
    more = [allreduce(size, 10) for size in (64 * KIB, 256 * KIB, MIB)]
    others = [
        Case(collective=collective, bytes=size, repeats=repeats)
        for collective in STANDARD
        if collective is not Collective.ALLREDUCE
        for size, repeats in ((64 * KIB, 15), (MIB, 5))
    ]
    for order in orders:
        book = job.prepare(order)
        extra = (more if quick else more + others) if order in main_orders else []
        job.native(order, book, sizes + extra)
    report.bar("allreduce-16MiB-of-limit", min(job.of_limit[16 * MIB]))
    report.bar("allreduce-4MiB-of-limit", min(job.of_limit[4 * MIB]))
    report.bar("allreduce-1KiB-native-ms", statistics.median(job.latency_ms))
    report.bar("prediction-error-allreduce", max(job.errors[True]))
    if not quick:
        report.bar("prediction-error-others", max(job.errors[False]))
    report.bar("measure-and-plan-s", max(job.preparing_s))
    through = [allreduce(KIB, 200, 20), allreduce(16 * MIB, 1 if quick else 3, 0 if quick else 1)]
    if not quick:
        through[1:1] = [allreduce(64 * KIB, 10), allreduce(MIB, 5), allreduce(4 * MIB, 3)]
        report.bar("over-gloo-rack-order-16MiB", job.torch(RACK_ORDER, through)[16 * MIB])
    ratios = job.torch(INTERLEAVED, through)
    report.bar("over-gloo-interleaved-16MiB", ratios[16 * MIB])
    report.bar("allreduce-1KiB-torch-of-gloo", 1 / ratios[KIB])
    report.bar("loopback-64MiB-over-gloo", job.loopback(64 * MIB, 3 if quick else 9))
    if quick:
        report.note("quick: one order, no training, no other collectives")
    else:
        report.bar("demo-step-over-gloo-interleaved", job.demo())


def main() -> int:
    """Run the benchmark; 0 if every bar was printed and nothing broke."""
    options = arguments(__doc__)
    spec = TestbedSpec.load(SPEC)
    with (
        Report("main-job", bars=BARS, options=options, not_in_quick=NOT_IN_QUICK) as report,
        tempfile.TemporaryDirectory() as folder,
        Testbed.up(spec) as testbed,
    ):
        if testbed.is_fallback:
            report.note(f"no namespaces ({testbed.fallback_reason}): loopback with pacing")
        report.note(
            "limit: what TCP can carry over the cut that bounds the collective (95.6% of the "
            "link's rate); measured: median over repetitions; up to 4 KiB the slowest rank's "
            "call, beyond that from the ranks' mean call to the last rank's end; every result is "
            "compared"
        )
        run(MainJob(report, testbed, options, Path(folder)))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
