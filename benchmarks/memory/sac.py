"""torch's `sac_ilp` as a rival: modules and operators to recompute, by an integer program.

`torch.distributed._tools` tracks the memory of each module, estimates the time of each operator,
and chooses by one integer program which modules are checkpointed and how much of each is dropped,
by another which operators those are. It estimates times on GPUs alone; here its roofline has the
rates of a core of this machine. Needs pulp and pwlf (`requirements/bench-memory.txt`).
"""

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.ilp_utils import (
    Graph,
    aggregate_stats,
    get_peak_memory_runtime_baseline,
    parse_module_info,
)
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import (
    OPS_TO_ALWAYS_SKIP,
    SACEstimator,
    SACStats,
)
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from benchmarks.memory.rivals import Forward, Rival, eager, recompute
from benchmarks.memory.workloads import Workload

_MODE = "operator-level-cost-model"
_LEAST_MS = 1e-6  # of any operator: the programs leave those of no cost without a value


class InfeasibleError(RuntimeError):
    """The program has no solution within the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """A network as `sac_ilp` sees it.

    Attributes
    ----------
    graph : its modules.
    operators : of each module that has others, by its name from the root's.
    candidates : modules that may be checkpointed.
    peak_bytes : estimated peak without checkpoints, parameters and gradients included.
    """

    graph: Graph
    operators: dict[str, SACStats]
    candidates: list[str]
    peak_bytes: int


def estimates(workload: Workload, batch: int | None = None) -> Estimates:
    """Trace a workload under fake tensors, and estimate memory and time of its modules."""
    with (
        redirect_stdout(sys.stderr),
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),
        FakeTensorMode(),
        patch.object(RuntimeEstimator, "_roofline_estimate", classmethod(_roofline)),
    ):
        model, inputs, targets = workload.make(batch)

        def step() -> None:
            workload.loss(model(inputs), targets).backward()
            model.zero_grad(set_to_none=True)

        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            step()
        runtime = RuntimeEstimator()
        with runtime(_MODE):
            step()
        operators = SACEstimator()
        with operators(_MODE):
            loss = workload.loss(model(inputs), targets)
        loss.backward()
        info = aggregate_stats(model, tracker, runtime, operators, torch.device("cpu"))
    graph = parse_module_info(info)
    peak, _ = get_peak_memory_runtime_baseline(graph)
    return Estimates(
        graph=graph,
        operators=operators.sac_mod_stats,
        candidates=_candidates(graph),
        peak_bytes=peak,
    )


def _candidates(graph: Graph) -> list[str]:
    """Return the modules whose curve of time over memory was fitted; the others get none.

    That of a module of two operators has a division by zero, with which the program fails.
    """
    found: list[str] = []
    for node in graph.nodes:
        if not all(map(math.isfinite, (*node["slopes"], *node["intercepts"]))):
            node["n_segments"] = 0
        if node["n_segments"]:
            found.append(node["fqn"])
    return found


def sac_ilp(found: Estimates, fraction: float) -> Rival:
    """Return the rival whose budget is a fraction of the estimated peak.

    Raises
    ------
    InfeasibleError : when the rival is prepared, if the program has no solution.
    """
    return Rival(
        name=f"sac_ilp {fraction:g}", prepare=partial(_prepare, found=found, fraction=fraction)
    )


def _prepare(workload: Workload, model: nn.Module, *, found: Estimates, fraction: float) -> Forward:
    from torch.distributed._tools.sac_ilp import (  # needs pulp
        get_optimal_checkpointing_policy_per_module,
        sac_milp,
    )

    logging.getLogger(sac_milp.__module__).setLevel(logging.CRITICAL)
    budget_gib = fraction * found.peak_bytes / 2**30
    dropped, _, peak = sac_milp(found.graph, budget_gib, ac_units=found.candidates)
    if peak < 0:
        raise InfeasibleError(f"no solution within {fraction:g} of the estimated peak")
    modules = dict(model.named_modules())
    for name, share in dropped.items():
        stats = found.operators[name]
        chosen = get_optimal_checkpointing_policy_per_module(stats, 1 - share)
        kept = chosen or [0] * len(stats.func_names)  # nothing fits the share: recompute all
        module = modules[name.partition(".")[2]]  # without the root's name
        recompute([module], context_fn=_contexts(kept))
    return eager(workload, model)


def _contexts(kept: Sequence[int]) -> Callable[[], Any]:
    """Return contexts of a checkpoint that stores the operators whose entry is 1, by position."""

    def contexts() -> Any:
        position = {False: 0, True: 0}

        def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            if operator in OPS_TO_ALWAYS_SKIP:
                return CheckpointPolicy.PREFER_RECOMPUTE
            at = position[context.is_recompute]
            position[context.is_recompute] = at + 1
            return CheckpointPolicy.MUST_SAVE if kept[at] else CheckpointPolicy.PREFER_RECOMPUTE

        # counters of batch norms change after they were stored
        return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)

    return contexts


def _roofline(_: type, operator: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    """Return an operator's result and its time in ms: the larger of arithmetic and transfer."""
    kwargs = kwargs or {}
    result = operator(*args, **kwargs)
    flops, moved = 0, 0
    formula = flop_registry.get(operator._overloadpacket)
    if formula is not None:
        flops = formula(*args, **kwargs, out_val=result)
    if not operator.is_view:
        tensors = tree_leaves((args, kwargs, result))
        moved = sum(part.nbytes for part in tensors if isinstance(part, torch.Tensor))
    per_s, bytes_per_s = _rates()
    return result, max(_LEAST_MS, 1e3 * flops / per_s, 1e3 * moved / bytes_per_s)


@cache
def _rates() -> tuple[float, float]:
    """Return operations per second of a product, and bytes per second of a copy, of one core."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    side, rounds = 1024, 5
    with unset_fake_temporarily():
        left, right = torch.ones(side, side), torch.ones(8 * side, side)
        product = min(_seconds(lambda: left @ left) for _ in range(rounds))
        copy = min(_seconds(right.clone) for _ in range(rounds))
    return 2 * side**3 / product, 2 * right.nbytes / copy


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
