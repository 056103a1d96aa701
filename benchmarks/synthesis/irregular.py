"""Irregular machines: synthesized plans against every template.

A bar is the least advantage over the collectives with an applicable template. A template at the
proven lower bound cannot be beaten: its row shows that, and its bar is short. Machines without an
applicable template have rows, and no bar.
"""

from collections.abc import Callable

from benchmarks.harness import Report
from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.table import SEARCH_GENERATORS
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.collectives.run.synthesis import NativeSearch
from headrace.topology import Topology, presets

MIB = 1 << 20
COLLECTIVES = (
    Collective.ALLGATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALLREDUCE,
    Collective.ALL_TO_ALL,
    Collective.BROADCAST,
)
MACHINES: dict[str, Callable[[], Topology]] = {
    "dgx1": lambda: presets.dgx1(1),
    "ndv2-x2": lambda: presets.ndv2(2),
    "mi250": lambda: presets.mi250(1),
    "mesh-3x4": lambda: presets.mesh((3, 4)),
    "hub-and-spoke-6": lambda: presets.hub_and_spoke(6),
    "fat-tree": lambda: presets.fat_tree((4, 3), oversubscription=4.0),
    "dgx2-perturbed": lambda: perturbed(presets.dgx2(1), 7),
}

WITHOUT_TEMPLATES = frozenset({"mi250", "mesh-3x4"})
"""Machines that have too few links for any template."""

_QUICK = (Collective.ALLGATHER, Collective.BROADCAST)
"""Each other machine has a template for one of them."""

_AT_BOUND = 1e-6
"""Of the bound: closer is rounding."""


def bars() -> dict[str, str]:
    """Return one bar a machine: the least advantage over all collectives."""
    names = [name for name in MACHINES if name not in WITHOUT_TEMPLATES]
    return {f"over-templates-{name}": ">=1.001" for name in names}  # to beat, not to equal


def measure(report: Report, *, quick: bool) -> None:
    """Add the rows and give the bars."""
    for name, make in MACHINES.items():
        topology = make()
        advantages: list[float] = []
        optimal: list[str] = []
        for collective in _QUICK if quick else COLLECTIVES:
            method = Method(model=FULL, engine=NativeSearch())
            made = plan_collective(
                topology, collective, 16 * MIB, generators=SEARCH_GENERATORS, method=method
            )
            try:
                best = plan_collective(
                    topology, collective, 16 * MIB, generators=TEMPLATES, method=method
                )
            except ProgramError:
                best = None  # no template is applicable here
            advantage = None if best is None else best.predicted_us / made.predicted_us
            at_bound = best is not None and best.gap <= _AT_BOUND
            if at_bound:
                optimal.append(collective.value)
            if advantage is not None:
                advantages.append(advantage)
            report.row(
                "irregular machines, 16 MiB, full model",
                machine=name,
                collective=collective.value,
                synthesized_us=made.predicted_us,
                made_by=made.generator,
                gap=made.gap,
                template_us=None if best is None else best.predicted_us,
                template=None if best is None else best.generator,
                template_at_bound=at_bound,
                over_templates=advantage,
            )
        if optimal:
            report.note(
                f"{name}: a template is at the proven bound in {', '.join(optimal)}: it can be "
                "equalled, not beaten, and the bar is short by that"
            )
        if advantages:
            report.bar(f"over-templates-{name}", min(advantages))
        else:
            report.note(f"{name}: no template is applicable: nothing was compared")
