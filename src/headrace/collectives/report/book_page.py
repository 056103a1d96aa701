"""The page of a plan book: algorithm bandwidth against size, one curve for each generator."""

from collections.abc import Sequence
from itertools import groupby

from headrace.collectives.demand import ROOTED
from headrace.collectives.plan.book import Entry, PlanBook
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.portfolio import predict_us
from headrace.collectives.report.bottleneck import bottleneck
from headrace.report.curves import curves
from headrace.report.graph import draw_topology
from headrace.report.page import Page
from headrace.units import duration, size

BEST, BOUND = "this book", "lower bound"

_MOST_STEPS = 60_000
"""Steps simulated for one stretch of a curve: longer programs are drawn where they were scored."""


def book_page(book: PlanBook, source: str) -> Page:
    """Return the page of `book`, which was read from `source`."""
    page = Page(
        f"Plan book for {book.topology.name}",
        f"{source}: {book.topology.ranks} ranks, {len(book.programs)} programs.",
    )
    page.note(
        "Algorithm bandwidth is the size of the data over the predicted time. A generator's curve "
        "has its best program at each size that a plan was scored at; dominated candidates were "
        "not simulated and have no point."
    )
    for (collective, root), group in groupby(book.entries, key=lambda e: (e.collective, e.root)):
        entries = list(group)
        name = f"{collective.value}, root {root}" if collective in ROOTED else collective.value
        page.heading(name)
        lines = {name: points for name, points in _lines(book, entries).items() if points}
        page.figure(
            curves(
                lines,
                x="size",
                y="algorithm bandwidth, GB/s",
                by_size=True,
                emphasised=(BEST,),
                dashed=(BOUND,),
            )
        )
        _ranges(page, entries)
    page.heading("Topology")
    demand = book.entries[0].plan.program.demand if book.entries else None
    cut = None if demand is None else bottleneck(book.topology, demand, 1 << 20)
    drawing = draw_topology(book.topology, cut)
    if demand is not None:
        page.note(f"In red: the cut that limits {demand.collective} most. {drawing.note}")
    page.figure(drawing.figure, 620)
    return page


def _lines(book: PlanBook, entries: Sequence[Entry]) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {BEST: [], BOUND: []}
    us_of: dict[tuple[str, int], float] = {}
    for entry in entries:
        plan = entry.plan
        us_of[plan.generator, plan.total_bytes] = plan.predicted_us
        for candidate in plan.candidates:
            if candidate.predicted_us is not None:
                key = (candidate.generator, plan.total_bytes)
                us_of[key] = min(us_of.get(key, float("inf")), candidate.predicted_us)
        for total in _sizes(entry, entries):
            us = plan.predicted_us
            if total != plan.total_bytes:
                us = predict_us(plan.program, book.topology, total, plan.model)
            lines[BEST].append((float(total), _gb_per_s(total, us)))
            least = lower_bound(book.topology, plan.program.demand, total).total_us
            if least > 0:
                lines[BOUND].append((float(total), _gb_per_s(total, least)))
    for (generator, total), us in sorted(us_of.items(), key=lambda row: (row[0][0], row[0][1])):
        lines.setdefault(generator, []).append((float(total), _gb_per_s(total, us)))
    return lines


def _sizes(entry: Entry, entries: Sequence[Entry]) -> list[int]:
    """Sizes to draw an entry at: where it was scored, and the powers of two in its range."""
    steps = len(entry.plan.program.steps["op"])
    last = max(e.plan.total_bytes for e in entries)
    first = min(1 << 10, *(e.plan.total_bytes for e in entries))
    powers = [1 << k for k in range(63) if first <= 1 << k <= last]
    mine = [s for s in powers if entry.from_bytes <= s < (entry.to_bytes or 1 << 62)]
    if steps * len(mine) > _MOST_STEPS:
        mine = []
    return sorted({*mine, entry.plan.total_bytes})


def _gb_per_s(total_bytes: int, us: float) -> float:
    return total_bytes / us / 1e3 if us > 0 else float("inf")


def _ranges(page: Page, entries: Sequence[Entry]) -> None:
    page.table(
        ("from", "up to", "made by", "chunks", "scored at", "predicted", "bound", "gap"),
        [
            (
                size(entry.from_bytes, entry.plan.total_bytes),
                "" if entry.to_bytes is None else size(entry.to_bytes, entry.plan.total_bytes),
                entry.plan.generator,
                entry.plan.program.demand.chunks,
                size(entry.plan.total_bytes),
                duration(entry.plan.predicted_us),
                duration(entry.plan.bound.total_us),
                f"{entry.plan.gap:z.1%}",
            )
            for entry in entries
        ],
    )
