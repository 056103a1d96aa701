"""Tables of a plan's sends, and of the utilization of links and shared capacities."""

from collections.abc import Iterator

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headrace.collectives.plan.plan import Plan
from headrace.collectives.report.timeline import Timeline, size_text, timeline
from headrace.units import duration

SENDS, RESOURCES = 40, 12
"""Most rows that are printed without --all."""

_SLOTS = 40
"""Characters of a message's slots."""


def send_tables(plan: Plan, *, everything: bool = False) -> Iterator[RenderableType]:
    """Yield messages by time, then utilization, under the plan's own cost model."""
    line = timeline(plan)
    yield _sends(plan, line, everything)
    yield from _left_out(len(line), SENDS, "more sends", everything)
    yield from _busy(plan, line, everything)


def _sends(plan: Plan, line: Timeline, everything: bool) -> Table:
    table = Table(
        title=f"sends ({plan.model.name} model, {duration(line.total_us)} in all)",
        title_justify="left",
        box=None,
        padding=(0, 1),
    )
    for column in ("start", "arrival", "from", "to", "message", "size"):
        table.add_column(column, justify="right")
    table.add_column("slots", overflow="fold")
    for row in range(len(line) if everything else min(len(line), SENDS)):
        slots = line.slots[row]
        if len(slots) > _SLOTS and not everything:
            slots = f"{slots[: _SLOTS - 3]}..."
        channel = f" (channel {line.channel[row]})" if line.channel[row] else ""
        table.add_row(
            f"{line.start_us[row]:.2f}",
            f"{line.finish_us[row]:.2f}",
            str(line.src[row]),
            str(line.dst[row]),
            str(line.message[row]),
            size_text(plan, line.mb[row]),
            f"{slots}{' combined' if line.reduce[row] else ''}{channel}",
        )
    return table


def _busy(plan: Plan, line: Timeline, everything: bool) -> Iterator[RenderableType]:
    topology = plan.topology
    names = [f"{link.src} > {link.dst}" for link in topology.links]
    capacities = [shared.name for shared in topology.shared]
    for kind, labels, busy in (
        ("link", names, line.link_busy),
        ("shared capacity", capacities, line.shared_busy),
    ):
        order = np.argsort(-busy, kind="stable")
        order = order[busy[order] > 0].tolist()
        if not labels:
            continue
        table = Table(box=None, padding=(0, 1))
        table.add_column(kind)
        table.add_column("in use", justify="right")
        for index in order if everything else order[:RESOURCES]:
            table.add_row(labels[index], f"{busy[index]:z.1%}")
        yield table
        yield from _left_out(len(order), RESOURCES, "more that are less in use", everything)
        if idle := len(labels) - len(order):
            yield Text(f" {idle} of {len(labels)} are not used", style="dim")


def _left_out(count: int, limit: int, what: str, everything: bool) -> Iterator[Text]:
    if count > limit and not everything:
        yield Text(f" ... {count - limit} {what}: --all shows them", style="dim")
