"""The portfolio: every generator's programs, simulated, compared with the bound, the best proven.

A program does not depend on the size of the data, so it is made once and scored at many sizes.
Simulating all at all sizes would waste most of the time: a program whose latency alone (its time
with next to no data) or whose busiest capacity alone costs more than the best so far cannot win,
and is not simulated. What counts is the predicted time plus a charge for the busiest rank's steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.generators import GENERATORS, Generator, Setting
from headrace.collectives.plan.lower import lower
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.simulate import simulate
from headrace.collectives.plan.templates.shape import Groups
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Op, Program
from headrace.errors import HeadraceError, ProgramError, TopologyError, VerificationError
from headrace.topology import BYTES_PER_MB, Topology

__all__ = ["GENERATORS", "Portfolio", "plan_collective", "predict_us", "rescore"]

MIN_CHUNK_BYTES = 4096
"""Programs with smaller chunks are left out, unless their maker has none with larger ones."""

MAX_CHUNK_BYTES = 32 << 10
"""Programs with larger chunks are left out if their maker has one with smaller ones: the order of
a lane can only be chosen chunk by chunk, and a stall (a lost packet) of what feeds a chunk stalls
the lane."""

STEP_US = 10.0
EXPOSED_STEPS = 16
"""Choosing allows this much processor time (a system call, being woken) for each of the first so
many steps of the busiest rank; the rest hide behind the network. Predictions leave it out."""

ALIKE = 0.005
"""Predictions closer than this fraction count as equal: then the fewest steps win."""

LOCAL_US_PER_MB = 250.0
"""Copying or reducing 1 MB in memory takes about this; on arrival it hides behind the network."""

_MAX_PIECES = 1500
"""Coarser than the simulator's default; the one that is kept is simulated again, finely."""


def plan_collective(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    *,
    groups: Groups | None = None,
    root: int = 0,
    generators: Sequence[Generator] = GENERATORS,
) -> Plan:
    """Return the best program of the portfolio for one size.

    Parameters
    ----------
    total_bytes : see `Demand.chunk_bytes`.
    groups : ranks by locality (default: what the topology shows).

    Raises
    ------
    ProgramError : for groups or a root that do not fit, or if no generator serves.
    """
    portfolio = Portfolio.of(
        topology, collective, total_bytes, groups=groups, root=root, generators=generators
    )
    return portfolio.plan(total_bytes)


def predict_us(program: Program, topology: Topology, total_bytes: int) -> float:
    """Return the predicted time that plans are given."""
    return simulate(program, topology, total_bytes, local_us_per_mb=LOCAL_US_PER_MB).total_us


def rescore(plan: Plan, topology: Topology, total_bytes: int) -> Plan:
    """Return `plan` with prediction and bound for another size, and no candidates.

    Raises
    ------
    TopologyError : if `topology` is not the one that it was planned for.
    """
    if topology.digest != plan.topology_digest:
        raise TopologyError(
            f"topology '{topology.name}' is {topology.digest[:12]}..., the plan is for "
            f"{plan.topology_digest[:12]}...: plan for this topology instead"
        )
    return replace(
        plan,
        total_bytes=total_bytes,
        predicted_us=predict_us(plan.program, topology, total_bytes),
        bound=lower_bound(topology, plan.program.demand, total_bytes),
        candidates=(),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Entrant:
    maker: str
    program: Program
    latency_us: float
    us_per_byte: float  # what the busiest link or shared capacity takes per byte of the whole
    steps: int  # at the busiest rank
    proof: Proof | None = None

    @property
    def charge_us(self) -> float:
        """What choosing adds to the predicted time, for the processor; see `STEP_US`."""
        return STEP_US * min(self.steps, EXPOSED_STEPS)

    def floor_us(self, total_bytes: int) -> float:
        """No simulation at this size takes (noticeably) less."""
        return max(self.latency_us, self.us_per_byte * total_bytes)

    def prove(self) -> Proof:
        if self.proof is None:
            self.proof = verify(self.program)
        return self.proof


@dataclass(slots=True, kw_only=True, eq=False)
class Portfolio:
    """The programs for one collective and root on one topology, to be scored at any size."""

    setting: Setting
    entrants: list[_Entrant]
    absent: list[Candidate]
    _rejected: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        largest_bytes: int,
        *,
        groups: Groups | None = None,
        root: int = 0,
        generators: Sequence[Generator] = GENERATORS,
    ) -> "Portfolio":
        """Let every generator make its programs for sizes up to `largest_bytes`."""
        collective = Collective(collective)
        blocks = Demand(collective=collective, ranks=topology.ranks, root=root).blocks
        setting = Setting.of(
            topology,
            collective,
            groups=groups,
            root=root,
            max_chunks=max(1, largest_bytes // blocks // MIN_CHUNK_BYTES),
        )
        entrants: list[_Entrant] = []
        absent: list[Candidate] = []
        for generator in generators:
            try:
                for schedule in generator.schedules(setting):
                    entrants.append(_enter(generator.name, lower(schedule), topology))
            except HeadraceError as error:
                absent.append(Candidate(maker=generator.name, chunks=0, note=str(error)))
        return cls(setting=setting, entrants=entrants, absent=absent)

    def plan(self, total_bytes: int) -> Plan:
        """Return the best entrant's plan at one size; see `plan_collective`."""
        topology = self.setting.topology
        while True:
            predicted, notes = self._score(total_bytes)
            candidates = self._candidates(predicted, notes)
            if not predicted:
                reasons = "; ".join(f"{c.maker}: {c.note}" for c in candidates)
                raise ProgramError(
                    f"no generator serves {self.setting.collective} on '{topology.name}': {reasons}"
                )
            index = self._best(predicted)
            best = self.entrants[index]
            try:
                proof = best.prove()
            except VerificationError as error:
                self._rejected[index] = f"rejected: {error}"
                continue
            return Plan(
                program=best.program,
                maker=best.maker,
                total_bytes=total_bytes,
                topology_digest=topology.digest,
                predicted_us=predict_us(best.program, topology, total_bytes),
                bound=lower_bound(topology, best.program.demand, total_bytes),
                proof=proof,
                candidates=candidates,
            )

    def _score(self, total_bytes: int) -> tuple[dict[int, float], dict[int, str]]:
        """Return predicted times of those worth simulating, and notes on the others."""
        predicted: dict[int, float] = {}
        notes = dict(self._rejected)
        best = float("inf")
        guesses = [e.latency_us + e.us_per_byte * total_bytes + e.charge_us for e in self.entrants]
        for index in sorted(range(len(self.entrants)), key=guesses.__getitem__):
            entrant = self.entrants[index]
            if index in self._rejected:
                continue
            if self._too_fine(index, total_bytes):
                notes[index] = f"chunks below {MIN_CHUNK_BYTES} bytes"
            elif self._too_coarse(index, total_bytes):
                notes[index] = f"chunks above {MAX_CHUNK_BYTES} bytes"
            elif (least := entrant.floor_us(total_bytes) + entrant.charge_us) > best * (1 + ALIKE):
                notes[index] = f"cannot take less than {least:.0f} us, processor time included"
            else:
                simulation = simulate(
                    entrant.program,
                    self.setting.topology,
                    total_bytes,
                    max_pieces=_MAX_PIECES,
                    local_us_per_mb=LOCAL_US_PER_MB,
                )
                predicted[index] = simulation.total_us
                best = min(best, simulation.total_us + entrant.charge_us)
        return predicted, notes

    def _best(self, predicted: dict[int, float]) -> int:
        """Return the best; of those as good as the best, the one with the fewest steps."""
        cost = {i: us + self.entrants[i].charge_us for i, us in predicted.items()}
        alike = min(cost.values()) * (1 + ALIKE)
        return min((i for i in cost if cost[i] <= alike), key=lambda i: self.entrants[i].steps)

    # A maker's entrants follow each other, coarsest first.
    def _too_fine(self, index: int, total_bytes: int) -> bool:
        return (
            self._chunk_bytes(index, total_bytes) < MIN_CHUNK_BYTES
            and self._chunk_bytes(index, total_bytes, neighbour=-1) > 0
        )

    def _too_coarse(self, index: int, total_bytes: int) -> bool:
        return (
            self._chunk_bytes(index, total_bytes) > MAX_CHUNK_BYTES
            and self._chunk_bytes(index, total_bytes, neighbour=1) > 0
        )

    def _chunk_bytes(self, index: int, total_bytes: int, neighbour: int = 0) -> float:
        """Bytes of a chunk of the maker's entrant before, at or after `index`; 0 if none."""
        at = index + neighbour
        if not 0 <= at < len(self.entrants):
            return 0.0
        if self.entrants[at].maker != self.entrants[index].maker:
            return 0.0
        return self.entrants[at].program.demand.chunk_bytes(total_bytes)

    def _candidates(
        self, predicted: dict[int, float], notes: dict[int, str]
    ) -> tuple[Candidate, ...]:
        present = (
            Candidate(
                maker=entrant.maker,
                chunks=entrant.program.demand.chunks,
                predicted_us=predicted.get(index),
                note=notes.get(index, ""),
            )
            for index, entrant in enumerate(self.entrants)
        )
        return (*present, *self.absent)


def _enter(maker: str, program: Program, topology: Topology) -> _Entrant:
    us_per_byte = _us_per_byte(program, topology)
    ranks = program.lanes["rank"][program.steps["lane"]]
    return _Entrant(
        maker=maker,
        program=program,
        latency_us=simulate(program, topology, 1).total_us,
        us_per_byte=us_per_byte,
        steps=int(np.bincount(ranks).max()) if len(ranks) else 0,
    )


def _us_per_byte(program: Program, topology: Topology) -> float:
    """Return what the busiest link or shared capacity takes for one byte of the whole data."""
    lanes = {name: column[program.steps["lane"]] for name, column in program.lanes.items()}
    sends = np.flatnonzero(program.steps["op"] == int(Op.SEND))
    slots = np.zeros(len(topology.links))
    for step in sends:
        pair = (int(lanes["rank"][step]), int(lanes["peer"][step]))
        if pair not in topology.link_index:
            raise ProgramError(f"uses a link {pair[0]} -> {pair[1]} that the topology lacks")
        slots[topology.link_index[pair]] += program.steps["count"][step]
    alone = [slots[i] * link.beta_us_per_mb for i, link in enumerate(topology.links)]
    shared = [slots[list(s.links)].sum() * s.beta_us_per_mb for s in topology.shared]
    share_of_slot = program.demand.chunk_bytes(1) / BYTES_PER_MB
    return share_of_slot * max([*alone, *shared], default=0.0)
