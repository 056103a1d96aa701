"""Made-up networks and a made-up job on them: what adaptation sees, without processes or clocks."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.collectives.adapt.observe.port_changes import PortRates, bandwidth
from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.program import Direction, Op, Program
from headrace.job.steps import CHANGED
from headrace.testbed.spec import TestbedSpec
from headrace.topology import Topology


def network(tmp_path: Path, hosts: Sequence[int] = (4, 4), uplink: str = "800mbit") -> Topology:
    """Racks of so many hosts of 400 Mbit/s, as perfect measuring would find them."""
    file = tmp_path / "testbed.toml"
    racks = "".join(f"[[racks]]\nhosts = {count}\n" for count in hosts)
    file.write_text(
        f'name = "sim"\n[defaults]\nhost_rate = "400mbit"\nuplink_rate = "{uplink}"\n{racks}'
    )
    return TestbedSpec.load(file).topology("rack")


_BOOKS: dict[tuple[str, int], PlanBook] = {}


def book_for(topology: Topology, size: int) -> PlanBook:
    """Two-level plans for two racks of four, as they are what moving masters can help."""
    key = (topology.digest, size)
    if key not in _BOOKS:
        _BOOKS[key] = build_book(
            topology,
            groups=((0, 1, 2, 3), (4, 5, 6, 7)),
            collectives=(Collective.ALLREDUCE,),
            sizes=(1024, size),
            generators=[g for g in TEMPLATES if g.name in ("two_level", "hierarchical")],
        )
    return _BOOKS[key]


def traffic_bytes(program: Program, total_bytes: int) -> np.ndarray:
    """(n, n) bytes that one call sends from i to j, counted in the program."""
    n = program.demand.ranks
    sent = np.zeros((n, n))
    lane = program.steps["lane"]
    sends = program.lanes["direction"][lane] == Direction.SEND
    assert (program.steps["op"][sends] == Op.SEND).all()
    counts = program.steps["count"][sends] * program.demand.chunk_bytes(total_bytes)
    np.add.at(
        sent, (program.lanes["rank"][lane][sends], program.lanes["peer"][lane][sends]), counts
    )
    return sent


@dataclass
class SimulatedJob:
    """A training job: every step computes, then makes its calls one after another.

    `truth` are the ports' rates relative to the topology that was measured. Ranks answer at once,
    or each after a time of its own up to `late_s`, in which training goes on.
    """

    topology: Topology
    book: PlanBook
    sizes: tuple[int, ...]
    compute_s: float = 0.05
    noise: float = 0.02
    seed: int = 0
    truth: PortRates = field(default_factory=PortRates)
    answers: bool = True
    agrees: bool = True
    late_s: float = 0.0
    probes: int = 0
    swaps: list[PlanBook] = field(default_factory=list)
    now_s: float = 1000.0
    epoch: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._calls: list[tuple[Hashable, float]] = []
        self._sent = np.zeros((self.topology.ranks,) * 2)
        self._answered = self._sent
        self._answer_at: dict[int, float] = {}
        self._due: PlanBook | None = None
        self._known: dict[tuple[str, str, int], float] = {}
        self._moved: dict[tuple[str, int], np.ndarray] = {}
        self.steps_s: list[float] = []

    def slow(self, factors: Mapping[str, float]) -> None:
        """Change the network."""
        self.truth = PortRates(factors=dict(factors))

    def announce(self) -> None:
        """Announce that steps are different from here on."""
        self._calls.append((CHANGED, self.now_s))

    def ideal_s(self, book: PlanBook | None = None) -> float:
        """A step's time without noise."""
        network = self.truth.apply(self.topology)
        total = 0.0
        for size in self.sizes:
            plan = (book or self.book).choose(Collective.ALLREDUCE, size)
            assert plan is not None
            key = (plan.proof.program_digest, network.digest, size)
            if key not in self._known:
                self._known[key] = predict_us(plan.program, network, size) / 1e6
            total += self._known[key]
        return self.compute_s + total

    def step(self, straggle: float = 1.0) -> None:
        """Make one step."""
        if self._due is not None:
            self.book, self._due = self._due, None
            self.epoch += 1
        duration = self.ideal_s() * straggle * float(np.exp(self._random.normal(0, self.noise)))
        moved = self.moved()
        ends = self.now_s + duration
        for rank, at in self._answer_at.items():
            share = np.clip((at - self.now_s) / duration, 0.0, 1.0)
            self._answered[rank] += share * moved[rank]
            moved[rank] *= 1 - share
        self._answer_at = {rank: at for rank, at in self._answer_at.items() if at > ends}
        self._sent += moved
        for index, size in enumerate(self.sizes):
            at = self.now_s + self.compute_s + index * (duration - self.compute_s) / len(self.sizes)
            self._calls.append(((Collective.ALLREDUCE, size), at))
        self.now_s = ends
        self.steps_s.append(duration)

    def moved(self) -> np.ndarray:
        """(n, n) bytes that a step sends from i to j."""
        total = np.zeros((self.topology.ranks,) * 2)
        for size in self.sizes:
            plan = self.book.choose(Collective.ALLREDUCE, size)
            assert plan is not None
            key = (plan.proof.program_digest, size)
            if key not in self._moved:
                self._moved[key] = traffic_bytes(plan.program, size)
            total += self._moved[key]
        return total

    # ---- what the coordinator asks of a job -----------------------------------------------

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        found, self._calls = self._calls, []
        return found

    def gather(self, *, hurry: bool) -> Traffic | None:
        if not self.answers:
            return None
        self._answered, self._sent = self._sent, np.zeros_like(self._sent)
        if self.late_s:
            after = self._random.uniform(0, self.late_s, self.topology.ranks)
            self._answer_at = dict(enumerate((self.now_s + after).tolist()))
            while self._answer_at:
                self.step()
        sent = self._answered
        rates = bandwidth(self.truth.apply(self.topology))
        rates = rates * np.exp(self._random.normal(0, 3 * self.noise, rates.shape))
        return Traffic(
            sent_bytes=sent,
            rate_bytes_per_s=np.where(sent > 0, rates, np.nan),
            rtt_us=np.full(sent.shape, 100.0),
        )

    def swap(self, book: PlanBook) -> int | None:
        if not self.agrees:
            return None
        self._due = book
        self.swaps.append(book)
        return self.epoch + 1

    def probe(self) -> Topology | None:
        self.probes += 1
        return self.truth.apply(self.topology)
