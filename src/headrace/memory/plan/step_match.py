"""Comparison of training steps: a schedule is for one model, one kind of device and its shapes."""

from dataclasses import replace

from headrace.memory.errors import MismatchError
from headrace.memory.graph import Graph, Operator
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.profile import MemoryProfile

_SHORT = 12
_BY = {"optimizer": " (`optimizer=`)", "gradients": " (`accumulates=`)", "buckets": " (`ddp=`)"}
"""Arguments of `headrace.memory.fit` that what is resident depends on."""


def require_match(plan: MemoryPlan, step: MemoryProfile, source: str) -> None:
    """Check that a plan's schedule is one of `step`, whatever its measured costs.

    Parameters
    ----------
    source : of the plan, for the message.

    Raises
    ------
    MismatchError : naming all that differs.
    """
    differing = differences(plan.profile, step)
    if differing:
        raise MismatchError(f"{source} is for another training step: {'; '.join(differing)}")


def differences(made_for: MemoryProfile, step: MemoryProfile) -> list[str]:
    """Return the differences of two steps, besides times and workspaces."""
    shapes = shapes_of(made_for), shapes_of(step)
    differing = [
        f"{label} {theirs}, here {ours}"
        for label, theirs, ours in (
            ("shapes", *shapes),
            ("device", made_for.device, step.device),
            ("torch", made_for.torch, step.torch),
            *_resident(made_for.graph, step.graph),
        )
        if theirs != ours
    ]
    if made_for.model_digest != step.model_digest and shapes[0] == shapes[1]:
        theirs, ours = (
            f"{profile.model} ({profile.model_digest[:_SHORT]})" for profile in (made_for, step)
        )
        differing.insert(0, f"model {theirs}, here {ours}")
    if not differing and structure(made_for.graph) != structure(step.graph):
        differing.append(
            "its operators have other implementations, as of another version of headrace, or of "
            "other settings of exact, lossy, conditional and offload"
        )
    return differing


def structure(graph: Graph) -> Graph:
    """Return a graph without the costs that are measured."""
    return replace(
        graph,
        operators=tuple(map(_without_costs, graph.operators)),
        resident=dict(sorted(graph.resident.items())),
    )


def _without_costs(operator: Operator) -> Operator:
    ways = (
        replace(variant, time_us=0.0, workspace_bytes=0) for variant in operator.implementations
    )
    return replace(operator, implementations=tuple(ways))


def shapes_of(step: MemoryProfile) -> str:
    """Return the shapes and types of a step's inputs in words."""
    return ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in step.inputs)


def _resident(made_for: Graph, graph: Graph) -> list[tuple[str, str, str]]:
    theirs, ours = made_for.resident, graph.resident
    return [
        (f"bytes of {name}{_BY.get(name, '')}", str(theirs.get(name, 0)), str(ours.get(name, 0)))
        for name in sorted({*theirs, *ours})
    ]
