"""A partitioner for `torch.compile`: what its graphs store, within a memory budget.

AOTAutograd hands the compiler's partitioner one graph of the forward and backward pass. Here it is
cut by a schedule, of operators as they are: what each one's kernel is, and which are one kernel, is
the compiler's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import GraphModule

import headrace
from headrace._native import ScheduleSearch
from headrace.facades import offered_by
from headrace.memory.measure.capture import read_joint
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.timing import Roofline, memory_bytes, modelled
from headrace.memory.plan.effort import parse_effort
from headrace.memory.plan.make import LIMITS, parse_budget
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.run.graphs import Graphs, scheduled_graphs
from headrace.units import MOST_BYTES, size

_FUSED = Roofline(name="a compiled step", flops_per_s=10e12, bytes_per_s=1e12, launch_us=1.0)
"""Operators alone cannot be measured, as they are compiled together. Schedules depend on ratios of
times: 10 flops take as long as a byte, as on most GPUs and CPUs of 2016 to 2026 in float32."""


@offered_by("headrace.memory")
class MemoryPartitioner(CustomPartitionerFn):
    """Cuts joint graphs by schedules within a budget; see `headrace.memory.partitioner`."""

    def __init__(self, budget: int | str, effort: str, seed: int) -> None:
        parse_budget(budget, MOST_BYTES)  # the device is not known yet
        parse_effort(effort)
        self._budget, self._effort, self._seed = budget, effort, seed

    def __repr__(self) -> str:
        budget = self._budget if isinstance(self._budget, str) else size(self._budget)
        return f"<MemoryPartitioner: {budget}, seed {self._seed}>"

    def __call__(
        self,
        gm: GraphModule,
        joint_inputs: Sequence[object],  # noqa: ARG002
        **_: Any,
    ) -> tuple[GraphModule, GraphModule]:
        """Return the forward and the backward graph.

        Raises
        ------
        BudgetError : no schedule is found within the budget.
        CaptureError : shapes are dynamic.
        """
        with preserved():
            graphs = self._graphs(gm)
        return graphs.forward, graphs.backward

    def _graphs(self, gm: GraphModule) -> Graphs:
        captured = read_joint(gm)
        first = next(iter(gm.graph.find_nodes(op="placeholder"))).meta["val"]
        solution = solve_schedule(
            modelled(captured, _FUSED),
            parse_budget(self._budget, memory_bytes(first.device)),
            ScheduleSearch,
            limits=LIMITS[parse_effort(self._effort)],
            seed=self._seed,
        )
        return scheduled_graphs(captured, solution.schedule)

    def uuid(self) -> str:
        """Return the settings that compiled code depends on, for the compiler's cache."""
        settings = (self._budget, self._effort, self._seed, torch.__version__)
        return f"headrace {headrace.__version__} {settings}"
