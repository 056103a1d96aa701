"""Search generators: rows of the portfolio that search for schedules of one setting.

Templates (`generators`) have a schedule for every topology; search generators search on the given
topology, for the sizes of `Setting.aims`. Their objective is the time under the full cost model;
the portfolio compares the resulting candidates under the setting's own model.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.limited import first_interrupt
from headrace.collectives.plan.request import GENERATORS, Generator, Setting
from headrace.collectives.program import Schedule
from headrace.errors import ProgramError
from headrace.topology import BYTES_PER_MB

_CARRYING = frozenset(
    {
        Collective.BROADCAST,
        Collective.SCATTER,
        Collective.GATHER,
        Collective.ALLGATHER,
        Collective.ALL_TO_ALL,
        Collective.ALL_TO_ALL_V,
        Collective.CUSTOM,
    }
)
_COARSE = (1, 2, 3, 4, 6, 8, 12)
_TREE_CHUNKS = {"quick": (4,), "normal": (8, 24), "thorough": (8, 24, 64)}
_STREAMED = {"quick": (4, 32), "normal": (2, 8, 32, 64), "thorough": (2, 4, 8, 16, 32, 64)}
_MIRRORED_RESTARTS = {"quick": 4, "normal": 24, "thorough": 200}
_PLACEMENTS = {"quick": 200, "normal": 2000, "thorough": 40_000}
"""Rank orders evaluated, all templates together."""

_RELAYS = {"quick": 40_000, "normal": 400_000, "thorough": 10_000_000}
"""Messages timed again, all changes together."""

_SECONDS = {"quick": 2.0, "normal": 5.0, "thorough": 120.0}
"""Time limits of one search, as safety nets."""

_RESTARTS = {"quick": 16, "normal": 128, "thorough": 4096}
"""Of the matching of custom demands and uneven exchanges."""

_MOST_DELIVERIES = 120_000
"""Most deliveries (chunks times receivers) of a program; `orbits` scales further."""

_FAR = 1.2
"""Ratio to the best candidate above which no finer cut is tried: it would not catch up."""

_EXACT_DELIVERIES = {"quick": 24, "normal": 120, "thorough": 400}
_EXACT_WORK = {"quick": 1.0, "normal": 10.0, "thorough": 100.0}
"""Deterministic time of CP-SAT; a dense network takes several seconds for a unit."""


def _matching(setting: Setting) -> Iterator[Schedule]:
    """Randomised time-expanded matching, natively: `matching`."""
    from headrace.collectives.plan.generators.matching import match

    method = setting.method
    if method.engine is None:
        raise ProgramError("needs a search engine")
    _check_size(setting)
    effort = method.effort
    if method.model.streaming:
        yield from _streamed(setting)
        # The time of whole messages predicts that of streams poorly: little effort is enough.
        effort = "quick" if effort == "normal" else effort
    for aim in setting.aims:
        counts = {} if method.chunks is None else {"chunk_counts": (_per_rank(setting),)}
        if method.chunks is None and effort == "quick":
            counts = {"chunk_counts": _COARSE}
        found = match(
            setting.topology,
            setting.collective,
            aim,
            method.engine,
            root=setting.root,
            seed=method.seed,
            effort=effort,
            max_seconds=_SECONDS[effort],
            bound_us=setting.bound(setting.demand(method.chunks or 1), aim).total_us,
            **counts,
        )
        setting.report(f"{found.total_us:.4g} us with {found.demand.chunks} chunks a block")
        yield realize(found.demand, found.sends)
        if found.interrupted:
            raise KeyboardInterrupt


def _streamed(setting: Setting) -> Iterator[Schedule]:
    """The best by matching for each of several chunk counts, without latency.

    The search forwards whole messages one after the other, while streams run concurrently:
    schedules that the search rates as equal differ widely under simulation, so several are
    returned. Streams hide latency instead of paying it per message, and without it the best
    schedule does not depend on the size.
    """
    from headrace.collectives.plan.generators.matching import match

    method, topology = setting.method, setting.topology
    assert method.engine is not None
    if method.chunks is not None or not setting.aims:
        return
    links = tuple(replace(link, alpha_us=0.0) for link in topology.links)
    counts = _STREAMED[method.effort]
    for chunks in counts:
        if chunks * _least(setting) > setting.max_chunks and chunks != counts[0]:
            return
        found = match(
            replace(topology, links=links),
            setting.collective,
            max(setting.aims),
            method.engine,
            root=setting.root,
            seed=method.seed,
            effort="quick",
            max_seconds=_SECONDS[method.effort] / len(counts),
            chunk_counts=(chunks,),
        )
        yield realize(found.demand, found.sends)
        if found.interrupted:
            raise KeyboardInterrupt


def _mirrored(setting: Setting) -> Iterator[Schedule]:
    """Allreduce over trees that are used in both directions: `mirrored`."""
    from headrace.collectives.plan.generators.mirrored import mirrored

    method = setting.method
    if setting.collective is not Collective.ALLREDUCE:
        raise ProgramError("only for allreduce")
    if method.engine is None:
        raise ProgramError("needs a search engine")
    # Without latency, which a stream hides, the best schedule does not depend on the size.
    for aim in setting.aims[-1:] if method.model.streaming else setting.aims:
        yield from mirrored(
            setting.topology,
            max(aim, 1),
            method.engine,
            method.model,
            seed=method.seed,
            restarts=_MIRRORED_RESTARTS[method.effort],
            max_chunks=setting.max_chunks,
            chunk_counts=() if method.chunks is None else (method.chunks,),
        )


def _rank_order(setting: Setting) -> Iterator[Schedule]:
    """Rings, halving-doubling and trees with the rank order optimized: `rank_order`."""
    from headrace.collectives.plan.generators.rank_order import placements

    _check_size(setting)
    trials = _PLACEMENTS[setting.method.effort]
    # Without latency, which a stream hides, the best schedule does not depend on the size.
    for aim in setting.aims[-1:] if setting.method.model.streaming else setting.aims:
        for found in placements(setting, aim, trials):
            setting.report(f"{found.total_us:.4g} us with another order of ranks")
            yield found.schedule


def _relays(setting: Setting) -> Iterator[Schedule]:
    """All-to-all in fewer messages, some blocks forwarded by relays: `relays`."""
    from headrace.collectives.plan.generators.relays import relayed
    from headrace.collectives.plan.generators.templates import direct

    method = setting.method
    if setting.collective is not Collective.ALL_TO_ALL:
        raise ProgramError("only for all_to_all")
    if method.engine is None:
        raise ProgramError("needs a search engine")
    demand = setting.demand(method.chunks or 1)
    trials = _RELAYS[method.effort] // (setting.ranks**2 * demand.chunks)
    if trials < setting.ranks:
        raise ProgramError(f"{setting.ranks} ranks are too many: fewer trials than ranks")
    exchange = direct(demand)
    for aim in setting.aims:
        found = relayed(
            setting.topology,
            exchange,
            _chunk_mb(demand, aim),
            method.engine,
            seed=method.seed,
            trials=trials,
        )
        setting.report(f"{found.total_us:.4g} us")
        yield realize(demand, found.sends)


def _packing(setting: Setting) -> Iterator[Schedule]:
    """Trees and paths of least load, then list scheduling: `packing`."""
    from headrace.collectives.plan.engine import SearchInterrupted, SearchSettings
    from headrace.collectives.plan.flows import PackSettings, pack
    from headrace.collectives.plan.flows.list_schedule import in_order
    from headrace.collectives.plan.flows.rounding import rounded, tree_routes

    method = setting.method
    if setting.collective not in _CARRYING:
        raise ProgramError("only for collectives that do not combine; matching reverses the others")
    counts = _TREE_CHUNKS[method.effort] if method.chunks is None else (method.chunks,)
    _check_size(setting)
    for aim in setting.aims:
        for chunks in counts:
            demand = setting.demand(chunks)
            deliveries = deliveries_of(demand)
            if deliveries.targets.sum() > _MOST_DELIVERIES:
                continue
            chunk_mb = _chunk_mb(demand, aim)
            limits = PackSettings(limit_s=_SECONDS[method.effort])
            packing = pack(setting.topology, deliveries, chunk_mb, settings=limits)
            setting.report(f"{chunks} chunks, throughput within {packing.gap:.1%} of its bound")
            through = tree_routes(packing, rounded(setting.topology, packing, deliveries))
            if method.engine is None:
                sends, total_us = in_order(
                    setting.topology, deliveries, chunk_mb, through, batch_share=0.5
                )
            else:
                how = SearchSettings(
                    seed=method.seed,
                    restarts=24,
                    batch_share=1.0,
                    limit_s=_SECONDS[method.effort],
                )
                try:
                    found = method.engine.search(
                        setting.topology, deliveries, chunk_mb, routes=through, settings=how
                    )
                except SearchInterrupted as interrupt:
                    yield realize(demand, interrupt.found.sends)
                    raise
                sends, total_us = found.sends, found.total_us
            yield realize(demand, sends)
            if total_us > _FAR * setting.best_us(aim):
                break


def _exact(setting: Setting) -> Iterator[Schedule]:
    """Exact scheduling of small cases by constraint programming: `exact`."""
    from headrace.collectives.plan.generators.exact import exact_schedule
    from headrace.solver import Parameters

    method = setting.method
    if setting.collective not in _CARRYING:
        raise ProgramError("only for collectives that do not combine")
    if method.model.streaming:
        raise ProgramError("schedules whole blocks, one after the other: streams are faster")
    most = _EXACT_DELIVERIES[method.effort]
    for aim in setting.aims:
        demand = setting.demand(method.chunks or 1)
        deliveries = deliveries_of(demand)
        count = int(deliveries.targets.sum())
        if count > most:
            raise ProgramError(f"{count} deliveries, exact up to {most}")
        parameters = Parameters(
            deterministic=_EXACT_WORK[method.effort],
            limit_s=4 * _SECONDS[method.effort],
            progress=lambda progress: setting.report(str(progress)),
        )
        found = exact_schedule(
            setting.topology, deliveries, _chunk_mb(demand, aim), parameters=parameters
        )
        if found.sends is not None:
            setting.report(f"{'optimal' if found.optimal else 'best so far'} with whole blocks")
            yield realize(demand, found.sends)


def _orbits(setting: Setting) -> Iterator[Schedule]:
    """Plans invariant under a group that is transitive on the ranks: `orbits`."""
    from headrace.collectives.plan.generators.orbits.build import plan_orbits
    from headrace.collectives.plan.generators.orbits.expand import expand

    method = setting.method
    if setting.collective in ROOTED:
        raise ProgramError(f"{setting.collective} has a root: ranks are not equivalent")
    _check_size(setting)
    for aim in setting.aims:
        if method.chunks is None:
            found = plan_orbits(setting.topology, setting.collective, max(aim, 1))
        else:
            counts = (_per_rank(setting),)
            found = plan_orbits(setting.topology, setting.collective, max(aim, 1), chunks=counts)
        setting.report(f"{found.predicted_us:.4g} us")
        yield realize(found.plan.demand, expand(found.plan, found.simulation))


def _sketches(setting: Setting) -> Iterator[Schedule]:
    """Sketches derived from the topology: `autosketch`."""
    from headrace.collectives.plan.generators.taccl.autosketch import autosketch

    _check_size(setting)
    for aim in setting.aims:
        found = autosketch(setting, max(aim, 1))
        setting.report(f"{found.synthesis.physical_us:.4g} us with sketch '{found.sketch.name}'")
        yield found.synthesis.schedule
        if found.interrupted:
            raise KeyboardInterrupt


def _hosts(setting: Setting) -> Iterator[Schedule]:
    """Schedules between and inside equal hosts, pipelined: `hierarchy`."""
    from headrace.collectives.plan.generators.hosts.hierarchy import hierarchical_plans

    method = setting.method
    if method.chunks is not None:
        raise ProgramError("chooses its own chunks")
    _check_size(setting)
    for aim in setting.aims:
        block_mb = max(aim, 1) / BYTES_PER_MB / setting.ranks
        if method.effort == "quick":
            found = hierarchical_plans(setting.topology, setting.collective, block_mb, chunks=(4,))
        else:
            found = hierarchical_plans(setting.topology, setting.collective, block_mb)
        for demand, sends in found:
            yield realize(demand, sends)


def sketch_generator(sketch: Path, name: str = "sketch") -> Generator:
    """Return the generator that follows a user's sketch; raises SketchError if it is malformed."""
    from headrace.collectives.plan.generators.taccl.sketch import load_sketch

    return Generator(name, partial(_guided, sketch=load_sketch(sketch)))


def _guided(setting: Setting, *, sketch: object) -> Iterator[Schedule]:
    from headrace.collectives.plan.generators.taccl.sketch import Sketch, apply_sketch, whole
    from headrace.collectives.plan.generators.taccl.synthesize import (
        guided_synthesis,
        synthesize_demand,
    )
    from headrace.solver import SolverProgress

    assert sketch is None or isinstance(sketch, Sketch)
    topology, method = setting.topology, setting.method

    def report(stage: str, best_us: float, progress: SolverProgress | None) -> None:
        solver = "" if progress is None else f", {progress}"
        setting.report(f"{stage}: best {best_us:.4g} us{solver}")

    make = partial(guided_synthesis, topology, sketch, setting.collective, root=setting.root)
    if setting.given is not None:
        logical = whole(topology) if sketch is None else apply_sketch(sketch, topology)
        demand = setting.demand(1 if sketch is None else sketch.chunkup)
        make = partial(synthesize_demand, logical, demand)
    for aim in setting.aims:
        with first_interrupt() as interrupted:
            found = make(
                total_bytes=aim,
                seed=method.seed,
                effort=method.effort,
                progress=report,
                interrupt=interrupted,
                engine=method.engine,
            )
        yield found.schedule
        if interrupted():
            raise KeyboardInterrupt


def _moving(setting: Setting) -> Iterator[Schedule]:
    """Randomised matching of any demand that does not combine, for several chunk counts."""
    from headrace.collectives.plan.engine import SearchSettings

    method = setting.method
    if method.engine is None:
        raise ProgramError("needs a search engine")
    for aim in setting.aims:
        for chunks in (1, 2, 4, 8) if method.chunks is None else (method.chunks,):
            demand = setting.demand(chunks)
            deliveries = deliveries_of(demand)
            if chunks > 1 and deliveries.targets.sum() > _MOST_DELIVERIES:
                return
            found = method.engine.search(
                setting.topology,
                deliveries,
                _chunk_mb(demand, aim),
                settings=SearchSettings(
                    seed=method.seed,
                    restarts=_RESTARTS[method.effort],
                    batch_share=1.0,
                    limit_s=_SECONDS[method.effort],
                    target_us=setting.bound(demand, aim).total_us,
                ),
            )
            setting.report(f"{found.total_us:.4g} us with {chunks} chunks a slot")
            yield realize(demand, found.sends)


def custom_generators(sketch: Path | None = None) -> tuple[Generator, ...]:
    """Return the generators for custom demands and uneven exchanges.

    With a user's sketch it is the only one, as for named collectives.

    Raises
    ------
    SketchError : if the sketch is malformed.
    """
    if sketch is not None:
        return (sketch_generator(sketch),)
    return (
        *(generator for generator in GENERATORS if generator.name == "direct"),
        Generator("matching", _moving, min_gap=0.015),
        Generator("exact", _exact, min_gap=0.02),
        Generator("packing", _packing, min_gap=0.03),
        Generator("routing", partial(_guided, sketch=None), min_gap=0.03),
    )


def _check_size(setting: Setting) -> None:
    count = int(deliveries_of(setting.demand(_least(setting))).targets.sum())
    if count > _MOST_DELIVERIES:
        raise ProgramError(f"{count} deliveries, at most {_MOST_DELIVERIES}")


def _least(setting: Setting) -> int:
    return setting.ranks if setting.collective is Collective.ALLREDUCE else 1


def _per_rank(setting: Setting) -> int:
    """The method's number of chunks, of the block that every rank owns in an allreduce."""
    return max(1, (setting.method.chunks or 1) // _least(setting))


def _chunk_mb(demand: Demand, total_bytes: int) -> float:
    return max(demand.chunk_bytes(total_bytes), 1e-3) / BYTES_PER_MB


SEARCH_GENERATORS: tuple[Generator, ...] = (
    Generator("orbits", _orbits, min_gap=0.002),
    Generator("hosts", _hosts, min_gap=0.01),
    Generator("matching", _matching, min_gap=0.015),
    Generator("mirrored", _mirrored, min_gap=0.015),
    Generator("placed", _rank_order, min_gap=0.02),
    Generator("relays", _relays, min_gap=0.02),
    Generator("exact", _exact, min_gap=0.02),
    Generator("packing", _packing, min_gap=0.03),
    Generator("sketches", _sketches, min_gap=0.03),
)
"""All search generators that need no user's sketch."""

ALL_GENERATORS: tuple[Generator, ...] = (*GENERATORS, *SEARCH_GENERATORS)
