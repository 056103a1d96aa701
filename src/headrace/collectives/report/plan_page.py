"""The page of a plan: its certificate, its timeline, and its bottleneck."""

from headrace.collectives.demand import ROOTED
from headrace.collectives.plan.plan import Plan
from headrace.collectives.report.bottleneck import Bottleneck, bottleneck
from headrace.collectives.report.gantt import gantt
from headrace.collectives.report.timeline import Timeline, size_text, timeline
from headrace.report.graph import draw_topology
from headrace.report.page import Page
from headrace.units import duration, gb_per_s, size

_SENDS = 400


def plan_page(plan: Plan, source: str) -> Page:
    """Return the page of `plan`, which was read from `source`."""
    demand = plan.program.demand
    rooted = f" from or to rank {demand.root}" if demand.collective in ROOTED else ""
    page = Page(
        f"{demand.collective} of {demand.ranks} ranks{rooted}, {size(plan.total_bytes)}",
        f"{source}: on {plan.topology.name}, made by {plan.generator}.",
    )
    cut = bottleneck(plan.topology, demand, plan.total_bytes)
    line = timeline(plan)
    _certificate(page, plan, cut)
    _candidates(page, plan)
    page.heading("When each link and shared capacity is in use")
    chart = gantt(plan, line)
    page.note(
        "A bar is a message, from its start to its arrival; for a shared capacity, while it "
        "is held." + (f" Left out: {chart.note}." if chart.note else "")
    )
    page.figure(chart.figure, chart.height)
    _topology(page, plan, cut, line)
    _utilisation(page, plan, line)
    _sends(page, plan, line)
    return page


def _certificate(page: Page, plan: Plan, cut: Bottleneck | None) -> None:
    program, bound = plan.program, plan.bound
    page.heading("Certificate")
    page.facts(
        [
            ("predicted", f"{duration(plan.predicted_us)} ({plan.model.name} cost model)"),
            ("lower bound", f"{duration(bound.total_us)}: {bound.formula}"),
            ("gap", f"{plan.gap:z.2%}"),
            ("bottleneck cut", "none found" if cut is None else cut_text(cut, plan)),
            ("why this one", plan.why),
            (
                "program",
                f"{program.demand.chunks} chunks a block, {len(program.lanes['rank'])} lanes, "
                f"{len(program.steps['op'])} steps, {len(program.dependencies['on'])} dependencies",
            ),
            (
                "proof",
                f"verifier {plan.proof.verifier_version}, program {plan.proof.program_digest}",
            ),
            ("topology", plan.topology_digest),
        ]
    )
    page.table(
        ("term of the bound", "data", "at", "alpha us", "us"),
        [
            (
                t.name,
                size_text(plan, t.mb) if t.mb else "",
                gb_per_s(t.us_per_mb) if t.us_per_mb else "",
                t.alpha_us,
                t.us,
            )
            for t in bound.terms
        ],
    )


def cut_text(cut: Bottleneck, plan: Plan) -> str:
    """Return in words the bytes that must cross the cut, the links, and the least time."""
    shared = f", {_few(cut.shared)}" if cut.shared else ""
    ranks = _few([str(rank) for rank in cut.ranks])
    return (
        f"{size_text(plan, cut.mb)} must leave ranks {ranks} over "
        f"{len(cut.links)} links{shared}: at most {gb_per_s(1 / cut.mb_per_us)}, so at least "
        f"{duration(cut.us)}"
    )


def _few(names: list[str] | tuple[str, ...], most: int = 16) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _candidates(page: Page, plan: Plan) -> None:
    if not plan.candidates:
        return
    page.heading("Candidates of the portfolio")
    rows = sorted(
        plan.candidates, key=lambda c: (c.predicted_us is None, c.predicted_us or 0.0, c.generator)
    )
    page.table(
        ("generator", "chunks a block", "predicted us", "above the bound", "note"),
        [
            (
                c.generator,
                c.chunks or "",
                "" if c.predicted_us is None else c.predicted_us,
                _above(c.predicted_us, plan.bound.total_us),
                c.note,
            )
            for c in rows
        ],
    )


def _above(us: float | None, bound: float) -> str:
    return "" if us is None or bound <= 0 else f"{us / bound - 1:z.1%}"


def _topology(page: Page, plan: Plan, cut: Bottleneck | None, line: Timeline) -> None:
    page.heading("Topology and bottleneck")
    drawing = draw_topology(plan.topology, cut, line.link_busy)
    if cut is not None:
        page.note(f"In red: {cut_text(cut, plan)}.")
        if cut.us < 0.99 * plan.bound.total_us:
            term = max(plan.bound.terms, key=lambda t: t.us, default=None)
            name = "" if term is None else f" ({term.name})"
            page.note(
                f"The plan's bound is above that of any single cut that was tried: it comes "
                f"from several at once{name}."
            )
    if drawing.note:
        page.note(f"{drawing.note}.")
    page.figure(drawing.figure, 620)


def _utilisation(page: Page, plan: Plan, line: Timeline) -> None:
    page.heading("Utilisation")
    rows = [
        (s.name, "shared capacity", float(b))
        for s, b in zip(plan.topology.shared, line.shared_busy, strict=True)
    ]
    rows += [
        (f"{k.src} > {k.dst}", "link", float(b))
        for k, b in zip(plan.topology.links, line.link_busy, strict=True)
    ]
    used = sorted((row for row in rows if row[2] > 0), key=lambda row: (-row[2], row[1], row[0]))
    page.note(f"{len(rows) - len(used)} of {len(rows)} links and capacities are not used.")
    page.table(("name", "kind", "in use"), [(a, b, f"{c:z.1%}") for a, b, c in used[:_SENDS]])


def _sends(page: Page, plan: Plan, line: Timeline) -> None:
    page.heading("Sends")
    if len(line) > _SENDS:
        page.note(f"The first {_SENDS} of {len(line)}; `headrace show --all` prints every one.")
    page.table(
        ("start us", "arrival us", "from", "to", "message", "size", "slots", ""),
        [
            (
                float(line.start_us[i]),
                float(line.finish_us[i]),
                int(line.src[i]),
                int(line.dst[i]),
                int(line.message[i]),
                size_text(plan, line.mb[i]),
                line.slots[i] if len(line.slots[i]) <= 200 else f"{line.slots[i][:197]}...",
                "combined" if line.reduce[i] else "",
            )
            for i in range(min(len(line), _SENDS))
        ],
    )
