"""The portfolio: candidates of every generator, simulated, held against the bound; the best proven.

A program does not depend on the size of the data, so it is made once and scored at many sizes.
Dominated candidates are pruned before simulation: those whose latency alone (time with next to no
data) or whose busiest capacity alone costs more than the best so far. The objective is the
predicted time plus, if the cost model has one, a charge for the busiest rank's steps.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, CostModel
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.limited import TimeLimit, run_limited
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.request import METHOD, Generator, Method, Request
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Direction, Program, Schedule
from headrace.errors import HeadraceError, TopologyError, VerificationError
from headrace.topology import BYTES_PER_MB, Topology

_log = logging.getLogger(__name__)

_MAX_PIECES, _FINE_PIECES = 1500, 4000
"""Pieces of a simulation, coarser than the default; the chosen one is simulated again, finely."""

_LATE_S, _LATE_GAP = 7.5, 0.1
"""Search time for each size in s after which `min_gap` is at least `_LATE_GAP`.

In processor time, so that other load of the machine matters little.
"""

_LIMIT_S = {"quick": 10.0, "normal": 30.0, "thorough": 1800.0}
"""Time limits of one generator for one size, as safety nets: several times the slowest's."""

_DELIVERY_S = 1e-4
"""Added to the limit for every delivery of a chunk, as programs of many ranks take longer."""

_MOST_SCHEDULES = 1000
"""Candidates of one generator: none has as many cuts and routes, so more means no end."""

Progress = Callable[[str, float], None]
"""Called with the current activity and the fraction that is done."""


def plan_collective(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    *,
    groups: RankGroups | None = None,
    root: int = 0,
    generators: Sequence[Generator] = TEMPLATES,
    method: Method = METHOD,
    given: Demand | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Return the best program of the portfolio for one size.

    Parameters
    ----------
    total_bytes : see `Demand.chunk_bytes`.
    groups : ranks by locality (default: `locality` of the topology).
    given : the demand, if it is a custom one or an all_to_all_v.

    Raises
    ------
    ProgramError : for groups or a root that do not fit, or if no generator is applicable.
    """
    request = Request(topology, collective, groups=groups, root=root, method=method, given=given)
    portfolio = Portfolio.of(request, (total_bytes,), generators=generators, progress=progress)
    return portfolio.plan(total_bytes)


def predict_us(
    program: Program, topology: Topology, total_bytes: int, model: CostModel = EXECUTOR
) -> float:
    """Return the predicted time, as in plans."""
    return simulate(program, topology, total_bytes, model=model).total_us


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
        predicted_us=predict_us(plan.program, topology, total_bytes, plan.model),
        bound=lower_bound(topology, plan.program.demand, total_bytes),
        candidates=(),
        why="",
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _ScoredProgram:
    generator: str
    program: Program
    us_per_byte: float  # of the busiest link or shared capacity, per byte of the whole data
    steps: int  # at the busiest rank
    charge_us: float  # processor time that the choice adds to the predicted time
    proof: Proof | None = None
    latency_us: float | None = None  # with next to no data, computed on first use
    known_us: dict[int, float] = field(default_factory=dict[int, float])  # by size
    rejected: str = ""  # why it may not be chosen


_Notes = dict[_ScoredProgram, str]
"""Why candidates are not predicted."""


@dataclass(slots=True, kw_only=True, eq=False)
class Portfolio:
    """Candidates for one collective and root on one topology, to be scored at any size."""

    request: Request
    candidates: list[_ScoredProgram]
    absent: list[Candidate]
    interrupted: bool = False
    _spent_s: float = 0.0

    @classmethod
    def of(
        cls,
        request: Request,
        sizes: Sequence[int],
        *,
        generators: Sequence[Generator] = TEMPLATES,
        progress: Progress | None = None,
    ) -> "Portfolio":
        """Run every generator for `sizes`, in bytes, ascending; they replace those of `request`."""
        tell = progress or (lambda _what, _fraction: None)
        collective = request.collective
        at: tuple[str, float] = (collective, 0.0)
        most = sizes[-1] // request.demand(1).blocks
        request = replace(
            request,
            max_chunks=max(1, most // max(request.method.model.min_chunk_bytes, 1)),
            aims=_aims(sizes),
            report=lambda text: tell(f"{at[0]}: {text}", at[1]),
            best_us=lambda aim: portfolio._best_us(aim),
        )
        portfolio = cls(request=request, candidates=[], absent=[])
        began = time.thread_time()
        for done, generator in enumerate(generators):
            at = (f"{collective}: {generator.name}", done / len(generators))
            tell(*at)
            spent_s = time.thread_time() - began + portfolio._spent_s
            try:
                note = portfolio._skip_reason(generator.min_gap, spent_s)
                note = note or portfolio._add(generator)
            except KeyboardInterrupt:  # plan with the candidates so far
                if not portfolio.candidates:
                    raise
                late = generators[done:]
                portfolio.absent += [
                    Candidate(generator=g.name, chunks=0, note="interrupted") for g in late
                ]
                portfolio.interrupted = True
                break
            if note:
                portfolio.absent.append(Candidate(generator=generator.name, chunks=0, note=note))
        return portfolio

    def _add(self, generator: Generator) -> str:
        """Add the candidates of `generator`; return why it added none, or not all, or ''.

        An exception of any kind or an exceeded time limit ends this generator alone; its candidates
        so far and those of other generators stay. That no thread can be started is raised.
        """
        before = len(self.candidates)
        # A list of its own, as an abandoned thread may still append to it.
        candidates = self.candidates = list(self.candidates)

        def generate() -> str:
            began = time.thread_time()
            try:
                self._collect(generator, candidates)
            except HeadraceError as error:
                return str(error)
            except Exception as error:
                _log.info("generator %s: failed", generator.name, exc_info=True)
                return f"failed: {type(error).__name__}: {error}"
            finally:
                self._spent_s += time.thread_time() - began
            return ""

        try:
            return run_limited(generate, self._limit_s())
        except TimeLimit:
            added = len(candidates) - before
            self.candidates = list(candidates)
            _log.info("generator %s: stopped after %.3g s", generator.name, self._limit_s())
            return f"stopped: out of time after {self._limit_s():.3g} s, with {added} programs"

    def _collect(self, generator: Generator, candidates: list[_ScoredProgram]) -> None:
        chunks = self.request.method.chunks
        for number, schedule in enumerate(generator.schedules(self.request)):
            if number >= _MOST_SCHEDULES:
                raise ProgramError(f"stopped: limit of {number} programs reached")
            if chunks not in (None, schedule.demand.chunks):
                continue
            _check_links(schedule, self.request.topology)
            candidates.append(_scored(generator.name, lower(schedule), self.request))

    def _limit_s(self) -> float:
        """Return the time limit of one generator, a safety net; see `Method.limit_s`."""
        request = self.request
        if request.method.limit_s is not None:
            return request.method.limit_s
        demand = request.demand(1)
        deliveries = demand.ranks * demand.slots
        return max(1, len(request.aims)) * _LIMIT_S[request.method.effort] + (
            deliveries * _DELIVERY_S
        )

    def plan(self, total_bytes: int) -> Plan:
        """Return the best candidate's plan at one size; see `plan_collective`."""
        topology = self.request.topology
        while True:
            predicted, notes = self._score(total_bytes)
            results = self._results(predicted, notes)
            if not predicted:
                raise ProgramError(self._no_plan(total_bytes, results))
            best = self._best(predicted)
            try:
                proof = best.proof = best.proof or verify(best.program)
            except VerificationError as error:
                best.rejected = f"rejected: {error}"
                continue
            forbidden = self.request.method.forbidden
            if forbidden is not None and (why := forbidden(best.program)):
                best.rejected = f"forbidden: {why}"
                continue
            return Plan(
                program=best.program,
                generator=best.generator,
                total_bytes=total_bytes,
                topology=topology,
                model=self.request.method.model,
                predicted_us=self._predict_us(best, total_bytes, fine=True),
                bound=self.request.bound(best.program.demand, total_bytes),
                proof=proof,
                candidates=results,
                why=self._why(best, predicted),
            )

    def _no_plan(self, total_bytes: int, candidates: Sequence[Candidate]) -> str:
        """Return the error text: the request, why no generator has a plan, and remedies."""
        topology, chunks = self.request.topology, self.request.method.chunks
        names = {candidate.generator for candidate in candidates}
        helps = ["add the links that are lacking to the topology"]
        if chunks is not None:
            helps.append("leave the number of chunks open")
        helps.append(
            f"plan without {' and '.join(names)}" if len(names) == 1 else "plan with a sketch"
        )
        cut = "" if chunks is None else f" in {chunks} chunks"
        return (
            f"no plan was found for {self.request.collective} of {total_bytes} bytes{cut} over the "
            f"{topology.ranks} ranks of topology '{topology.name}': {_reasons(candidates)}; "
            f"{', or '.join(helps)}"
        )

    def _skip_reason(self, min_gap: float | None, spent_s: float) -> str:
        """Reason to skip a generator whose `min_gap` is met at all sizes already, or ''."""
        if min_gap is None or not self._prunes():
            return ""
        if spent_s > _LATE_S * len(self.request.aims):
            min_gap = max(min_gap, _LATE_GAP)
        names: set[str] = set()
        for aim in self.request.aims:
            best, best_us = self._fastest(aim)
            if best_us > self.request.bound(best.program.demand, aim).total_us * (1 + min_gap):
                return ""
            names.add(best.generator)
        return f"skipped: {' and '.join(sorted(names))} is within {min_gap:z.1%} of the bound"

    def _prunes(self) -> bool:
        """Return whether the candidates so far may prune the search of later generators."""
        method = self.request.method
        exhaustive = method.model.streaming or method.effort == "thorough"
        return bool(self.candidates) and not exhaustive

    def _best_us(self, total_bytes: int) -> float:
        return self._fastest(total_bytes)[1] if self._prunes() else float("inf")

    def _fastest(self, total_bytes: int) -> tuple[_ScoredProgram, float]:
        """The fastest candidate and its predicted time. Dominated ones are not simulated."""
        best = (float("inf"), 0)
        for index, candidate in sorted(
            enumerate(self.candidates), key=lambda row: row[1].us_per_byte
        ):
            if candidate.us_per_byte * total_bytes > best[0]:
                break
            best = min(best, (self._predict_us(candidate, total_bytes, fine=True), index))
        return self.candidates[best[1]], best[0]

    def _score(self, total_bytes: int) -> tuple[dict[_ScoredProgram, float], _Notes]:
        """Return predicted times of candidates that are not dominated, and notes on the others."""
        alike = 1 + self.request.method.model.alike
        notes = self._dominated(total_bytes)
        left = [candidate for candidate in self.candidates if candidate not in notes]
        estimates: dict[_ScoredProgram, float] = {}
        floors: dict[_ScoredProgram, float] = {}  # lower bounds on the simulated times
        for each in left if len(left) > 1 else ():
            if each.latency_us is None:
                each.latency_us = self._simulated_us(each, 1)
            busy = each.us_per_byte * total_bytes
            estimates[each] = each.latency_us + busy + each.charge_us
            floors[each] = max(each.latency_us, busy) + each.charge_us
        best = float("inf")
        predicted: dict[_ScoredProgram, float] = {}
        for each in sorted(left, key=lambda each: estimates.get(each, 0.0)):
            if (least := floors.get(each, 0.0)) > best * alike:
                notes[each] = _too_slow(least)
            else:
                predicted[each] = self._predict_us(each, total_bytes, fine=False)
                best = min(best, predicted[each] + each.charge_us)
        rejected = {
            candidate: candidate.rejected for candidate in self.candidates if candidate.rejected
        }
        return {
            candidate: us for candidate, us in predicted.items() if candidate not in rejected
        }, notes | rejected

    def _dominated(self, total_bytes: int) -> _Notes:
        """Return why candidates are out: rejected, too fine, too coarse, or slower than known."""
        model = self.request.method.model
        reasons = {
            candidate: candidate.rejected or self._misfit(candidate, total_bytes)
            for candidate in self.candidates
        }
        notes = {candidate: reason for candidate, reason in reasons.items() if reason}
        if model.streaming:  # known times were simulated more finely
            return notes
        left = [candidate for candidate in self.candidates if candidate not in notes]
        simulated_us = [
            e.known_us[total_bytes] + e.charge_us for e in left if total_bytes in e.known_us
        ]
        limit = min(simulated_us, default=float("inf")) * (1 + model.alike)
        for each in left:
            if (least := each.us_per_byte * total_bytes + each.charge_us) > limit:
                notes[each] = _too_slow(least)
        return notes

    def _misfit(self, scored: _ScoredProgram, total_bytes: int) -> str:
        """Return why its generator's coarser or finer candidates are preferred, or ''."""
        model, demand = self.request.method.model, scored.program.demand
        counts = [
            e.program.demand.chunks for e in self.candidates if e.generator == scored.generator
        ]
        size = demand.chunk_bytes(total_bytes)
        if size < model.min_chunk_bytes and min(counts) < demand.chunks:
            return f"chunks below {model.min_chunk_bytes} bytes"
        if size > model.max_chunk_bytes and max(counts) > demand.chunks:
            return f"chunks above {model.max_chunk_bytes} bytes"
        return ""

    def _predict_us(self, scored: _ScoredProgram, total_bytes: int, *, fine: bool) -> float:
        simulated_us = scored.known_us
        if not fine and self.request.method.model.streaming:
            return self._simulated_us(scored, total_bytes, max_pieces=_MAX_PIECES)
        if total_bytes not in simulated_us:
            simulated_us[total_bytes] = self._simulated_us(scored, total_bytes)
        return simulated_us[total_bytes]

    def _simulated_us(
        self, scored: _ScoredProgram, total_bytes: int, *, max_pieces: int = _FINE_PIECES
    ) -> float:
        """Return the predicted time; infinite, and rejected, if the program cannot be simulated."""
        try:
            return simulate(
                scored.program,
                self.request.topology,
                total_bytes,
                model=self.request.method.model,
                max_pieces=max_pieces,
            ).total_us
        except HeadraceError as error:
            scored.rejected = f"rejected: {error}"
            return float("inf")

    def _best(self, predicted: dict[_ScoredProgram, float]) -> _ScoredProgram:
        """Return the best; of equal ones, the one with the fewest steps."""
        cost = {candidate: us + candidate.charge_us for candidate, us in predicted.items()}
        alike = min(cost.values()) * (1 + self.request.method.model.alike)
        return min(
            (candidate for candidate in cost if cost[candidate] <= alike),
            key=lambda each: each.steps,
        )

    def _why(self, best: _ScoredProgram, predicted: dict[_ScoredProgram, float]) -> str:
        """Return, in words, how the best compares with the best of every other generator."""
        cost = {candidate: us + candidate.charge_us for candidate, us in predicted.items()}
        others = [candidate for candidate in cost if candidate.generator != best.generator]
        if not others:
            return "no other generator's candidate came close enough to be simulated"
        second = min(others, key=cost.__getitem__)
        ahead = cost[second] / cost[best] - 1 if cost[best] else 0.0
        if ahead <= self.request.method.model.alike:
            return (
                f"as fast as {second.generator}, in fewer steps ({best.steps} at the busiest rank)"
            )
        return f"{ahead:z.1%} ahead of the next generator, {second.generator}"

    def _results(
        self, predicted: dict[_ScoredProgram, float], notes: _Notes
    ) -> tuple[Candidate, ...]:
        present = (
            Candidate(
                generator=candidate.generator,
                chunks=candidate.program.demand.chunks,
                predicted_us=predicted.get(candidate),
                note=notes.get(candidate, ""),
            )
            for candidate in self.candidates
        )
        return (*present, *self.absent)


def _reasons(candidates: Sequence[Candidate]) -> str:
    """Return why every generator failed, each reason once."""
    generators: dict[str, list[str]] = {}
    for candidate in candidates:
        generators.setdefault(candidate.note, []).append(candidate.generator)
    return "; ".join(f"{', '.join(names)}: {note}" for note, names in generators.items())


def _aims(sizes: Sequence[int]) -> tuple[int, ...]:
    """The least, a middle and the largest of many sizes, for search generators."""
    if len(sizes) <= 3:
        return tuple(sizes)
    return (sizes[0], sizes[len(sizes) // 2], sizes[-1])


def _scored(generator: str, program: Program, request: Request) -> _ScoredProgram:
    model = request.method.model
    ranks = program.lanes["rank"][program.steps["lane"]]
    steps = int(np.bincount(ranks).max()) if len(ranks) else 0
    return _ScoredProgram(
        generator=generator,
        program=program,
        us_per_byte=_us_per_byte(program, request.topology),
        steps=steps,
        charge_us=model.step_us * min(steps, model.exposed_steps),
    )


def _too_slow(least_us: float) -> str:
    return f"cannot take less than {least_us:.0f} us, processor time included"


def _check_links(schedule: Schedule, topology: Topology) -> None:
    """Raise ProgramError for a link that `topology` lacks, before work is put into a program."""
    used = {(transfer.src, transfer.dst) for transfer in schedule.transfers}
    lacking = [pair for pair in used if pair[0] != pair[1] and pair not in topology.link_index]
    if lacking:
        src, dst = min(lacking)
        raise ProgramError(f"uses a link {src} -> {dst} that the topology lacks")


def _us_per_byte(program: Program, topology: Topology) -> float:
    """Return the time of the busiest link or shared capacity for one byte of the whole data."""
    lanes, steps = program.lanes, program.steps
    sending = np.flatnonzero(lanes["direction"] == int(Direction.SEND))
    pairs = zip(lanes["rank"][sending].tolist(), lanes["peer"][sending].tolist(), strict=True)
    covered = np.bincount(steps["lane"], weights=steps["count"], minlength=len(lanes["rank"]))
    link = np.array([topology.link_index[pair] for pair in pairs], dtype=np.int64)
    slots = np.bincount(link, weights=covered[sending], minlength=len(topology.links))
    alone = (slots * topology.columns.beta_us_per_mb).tolist()
    shared = [slots[list(s.links)].sum() * s.beta_us_per_mb for s in topology.shared]
    share_of_slot = program.demand.chunk_bytes(1) / BYTES_PER_MB
    return share_of_slot * max([*alone, *shared], default=0.0)
