"""Steps of rivals and designs by turns, on one network: their times, and what they moved."""

import statistics
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks.embeddings.bed import spec
from benchmarks.embeddings.designs import PREFETCH, Design, started
from benchmarks.embeddings.turns import Job, job
from benchmarks.embeddings.workload import KAGGLE, Workload
from benchmarks.processors import processor_ticks
from headrace.embeddings.run.job.job_processes import JobProcesses
from headrace.testbed import Testbed

DENSE = {
    "DLRM": 2_962_289,
    "Wide & Deep": 136_673,
    "DeepFM": 88_706,
    "DeepFM, dense linear terms": 33_851_283,
}
"""Parameters of the dense part (Table 5.2); DeepFM's without its linear terms, and with them."""

BACKENDS = ("gloo", "headrace")
FIRST_STEPS = PREFETCH + 1
"""Of a design's turn: their rows were fetched while others had theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Trainers, the rate of their hosts, and what they train on."""

    trainers: int
    mbit: int
    workload: Workload = KAGGLE

    def __str__(self) -> str:
        return f"{self.trainers} trainers, {self.mbit} Mbit/s, {self.workload}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Rounds, and a turn's steps that count."""

    rounds: int
    steps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """Times of several variants at one ratio.

    Attributes
    ----------
    rounds : of each variant, the median seconds of a step in each round.
    counts : of each variant, sums over all trainers and rounds; "batches" are those of one trainer.
    idle : of each variant, the median share of the processors' time in which they were idle.
    """

    rounds: Mapping[str, list[float]]
    counts: Mapping[str, dict[str, float]]
    idle: Mapping[str, float]

    def median_ms(self, variant: str) -> float:
        """Return the median milliseconds of a step."""
        return 1e3 * statistics.median(self.rounds[variant])

    def fastest(self, variants: Sequence[str]) -> str:
        """Return the variant with the least median."""
        return min(variants, key=self.median_ms)

    def over(self, slower: str, faster: str) -> float:
        """Return the median over rounds of the ratio of two times: both of a round were near."""
        pairs = zip(self.rounds[slower], self.rounds[faster], strict=True)
        return statistics.median(first / second for first, second in pairs)


@dataclass(slots=True, kw_only=True, eq=False)
class TimedJob:
    """Trainers whose designs are in steady state.

    Attributes
    ----------
    exchange_s : by backend, seconds of the pooled rows' fetch and write-back alone.
    """

    network: Network
    ranks: Job
    designs: tuple[str, ...]
    exchange_s: dict[str, float] = field(default_factory=dict)

    @property
    def pooled_s(self) -> float:
        """Seconds of the fetch and write-back, on the faster backend."""
        return min(self.exchange_s.values())

    @property
    def fastest_backend(self) -> str:
        """The backend on which that takes less."""
        return min(self.exchange_s, key=lambda backend: self.exchange_s[backend])

    def turn(
        self,
        variant: str,
        backend: str,
        compute_s: float,
        steps: int,
        dense: int,
        settle_s: float = 0.0,
    ) -> tuple[list[float], dict[str, float]]:
        """Return the seconds of steps at the slowest trainer, and the sums of all trainers.

        Bytes are counted when the links have been quiet for `settle_s`.
        """
        answers = self.ranks.ask(
            {
                "variant": variant,
                "backend": backend,
                "compute_s": compute_s,
                "dense": dense,
                "steps": steps,
                "settle_s": settle_s,
            }
        )
        seconds = list(map(max, zip(*(answer["seconds"] for answer in answers), strict=True)))
        counts: dict[str, float] = {
            name: sum(answer["counts"][name] for answer in answers) for name in answers[0]["counts"]
        }
        for name in ("wire_bytes", "received_bytes"):
            counts[name] = sum(answer[name] for answer in answers)
        counts["batches"] = float(steps)
        return seconds, counts

    def measure_exchange(self, turns: Turns) -> None:
        """Measure the fetch and write-back that the emulated device's time is a multiple of."""
        seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for _ in range(turns.rounds):
            for backend in BACKENDS:
                seconds[backend] += self.turn("exchange", backend, 0.0, turns.steps + 1, 0)[0][1:]
        self.exchange_s = {name: statistics.median(times) for name, times in seconds.items()}

    def times(
        self, ratio: float, turns: Turns, dense: int, variants: Sequence[tuple[str, str]]
    ) -> Times:
        """Return the times of variants on backends, named "variant, backend" but for designs."""
        compute_s = ratio * self.pooled_s
        rounds: dict[str, list[float]] = {}
        sums: dict[str, dict[str, float]] = {}
        idle: dict[str, list[float]] = {}
        for _ in range(turns.rounds):
            for variant, backend in variants:
                is_design = variant in self.designs
                first = FIRST_STEPS if is_design else 1
                before = processor_ticks()
                seconds, counts = self.turn(variant, backend, compute_s, first + turns.steps, dense)
                name = variant if is_design else f"{variant}, {backend}"
                idle.setdefault(name, []).append(before.idle_share(processor_ticks()))
                rounds.setdefault(name, []).append(statistics.median(seconds[first:]))
                total = sums.setdefault(name, dict.fromkeys(counts, 0.0))
                for key, number in counts.items():
                    total[key] += number
        medians = {name: statistics.median(shares) for name, shares in idle.items()}
        return Times(rounds=rounds, counts=sums, idle=medians)


@contextmanager
def joined_designs(
    network: Network, designs: Sequence[Design]
) -> Generator[tuple[TimedJob, list[JobProcesses]]]:
    """Yield trainers that are connected to designs, and the processes of each."""
    with ExitStack() as stack:
        testbed = stack.enter_context(Testbed.up(spec(network.trainers, network.mbit)))
        processes = [stack.enter_context(started(testbed, design)) for design in designs]
        task = {"workload": network.workload.to_fields()}
        ranks = stack.enter_context(
            job(testbed, "benchmarks.embeddings.rank_of_steps", network.trainers, task, {})
        )
        for design, of_design in zip(designs, processes, strict=True):
            ranks.ask(design.connect_task(of_design))
        names = tuple(design.name for design in designs)
        yield TimedJob(network=network, ranks=ranks, designs=names), processes


@contextmanager
def timed_job(
    network: Network,
    designs: Sequence[str],
    lookahead: int,
    exchange: Turns,
    *,
    commit_every: int = 0,
) -> Generator[TimedJob]:
    """Yield a job with its designs' caches in steady state, and the exchange measured.

    Parameters
    ----------
    commit_every : batches between commits of the designs that make some.
    """
    planned = [
        Design(
            name=name,
            trainers=network.trainers,
            workload=network.workload,
            lookahead=lookahead,
            commit_every=commit_every,
        )
        for name in designs
    ]
    with joined_designs(network, planned) as (timed, _):
        for design in designs:
            timed.turn(design, "headrace", 0.0, lookahead + lookahead // 10, 0)
        timed.measure_exchange(exchange)
        yield timed
