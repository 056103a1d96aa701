"""Plan books, a point for every generator and size: the paper's curves (Figures 5.6 to 5.8)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from pathlib import Path

import headrace
from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.book import Entry, PlanBook
from headrace.collectives.plan.plan import Candidate, Plan
from headrace.collectives.plan.portfolio import Portfolio
from headrace.collectives.plan.request import Generator, Method, Request
from headrace.report.curves import curves
from headrace.report.page import Page
from headrace.topology import Topology

Plans = Mapping[str, Sequence[Plan]]
"""By generator, its best plan at every size."""


def plans_of(
    topology: Topology,
    collective: Collective,
    sizes: Sequence[int],
    generators: Sequence[Generator],
    method: Method,
) -> dict[str, list[Plan]]:
    """Return every applicable generator's best plans at all `sizes`.

    Each has a portfolio of its own: in a common one dominated candidates are pruned, and their
    curves would have holes.
    """
    found: dict[str, list[Plan]] = {}
    for generator in generators:
        portfolio = Portfolio.of(
            Request(topology, collective, method=method), sizes, generators=(generator,)
        )
        try:
            found[generator.name] = [portfolio.plan(size) for size in sizes]
        except ProgramError:
            continue
    return found


def best_of(plans: Plans) -> list[Plan]:
    """Return the fastest plan at every size, with every generator's result as candidate."""
    chosen: list[Plan] = []
    for row in zip(*plans.values(), strict=True):
        best = min(row, key=lambda plan: plan.predicted_us)
        candidates = tuple(
            Candidate(
                generator=plan.generator,
                chunks=plan.program.demand.chunks,
                predicted_us=plan.predicted_us,
            )
            for plan in row
        )
        others = [plan for plan in row if plan.generator != best.generator]
        why = "no other generator is applicable"
        if others:
            second = min(others, key=lambda plan: plan.predicted_us)
            ahead = second.predicted_us / best.predicted_us - 1
            why = f"{ahead:.1%} ahead of the next generator, {second.generator}"
        chosen.append(replace(best, candidates=candidates, why=why))
    return chosen


def save_book(topology: Topology, plans: Mapping[Collective, Plans], path: Path) -> None:
    """Write the book of the best plans to `path`: an entry for every size, scored there."""
    entries: list[Entry] = []
    for collective in sorted(plans):
        best = best_of(plans[collective])
        middles = [isqrt(a.total_bytes * b.total_bytes) for a, b in pairwise(best)]
        entries += [
            Entry(collective=collective, root=0, from_bytes=start, to_bytes=end, plan=plan)
            for plan, start, end in zip(best, [0, *middles], [*middles, None], strict=True)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    provenance = {"headrace": headrace.__version__, "topology": topology.digest}
    book = PlanBook(topology=topology, groups=None, entries=tuple(entries), provenance=provenance)
    book.save(path)


def draw(page: Page, name: str, plans: Mapping[Collective, Plans]) -> None:
    """Add to `page` a figure for each collective: algorithm bandwidth by size, all generators."""
    for collective, found in plans.items():
        any_plans = next(iter(found.values()))
        rows = {**found, "lower bound": any_plans}
        lines = {
            generator: [
                (float(p.total_bytes), p.total_bytes / _time_us(p, generator) / 1e3) for p in drawn
            ]
            for generator, drawn in rows.items()
        }
        page.heading(f"{name}, {collective.value}")
        page.figure(
            curves(
                lines,
                x="size",
                y="algorithm bandwidth, GB/s",
                by_size=True,
                dashed=("lower bound",),
            )
        )


def _time_us(plan: Plan, line: str) -> float:
    return plan.bound.total_us if line == "lower bound" else plan.predicted_us
