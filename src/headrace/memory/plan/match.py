"""Comparison of training steps: a schedule is for one model, one kind of device and its shapes."""

from dataclasses import replace

from headrace.memory.errors import MismatchError
from headrace.memory.graph import Graph, Operator
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.profile import MemoryProfile

_SHORT = 12
_BY = {"optimizer": " (`optimizer=`)", "gradients": " (`accumulates=`)", "buckets": " (`ddp=`)"}
"""Arguments of `headrace.memory.fit` that what is resident depends on."""


def require_match(plan: MemoryPlan, wanted: MemoryProfile, source: str) -> None:
    """Check that a plan's schedule is one of the step of `wanted`, whatever its measured costs.

    Parameters
    ----------
    source : of the plan, for the message.

    Raises
    ------
    MismatchError : naming all that differs.
    """
    found = differences(plan.profile, wanted)
    if found:
        raise MismatchError(f"{source} is for another training step: {'; '.join(found)}")


def differences(made_for: MemoryProfile, wanted: MemoryProfile) -> list[str]:
    """Return what differs between two steps, besides times and workspaces; empty: nothing."""
    shapes = shapes_of(made_for), shapes_of(wanted)
    found = [
        f"{label} {one}, here {other}"
        for label, one, other in (
            ("shapes", *shapes),
            ("device", made_for.device, wanted.device),
            ("torch", made_for.torch, wanted.torch),
            *_resident(made_for.graph, wanted.graph),
        )
        if one != other
    ]
    if made_for.model_digest != wanted.model_digest and shapes[0] == shapes[1]:
        one, other = (f"{each.model} ({each.model_digest[:_SHORT]})" for each in (made_for, wanted))
        found.insert(0, f"model {one}, here {other}")
    if not found and structure(made_for.graph) != structure(wanted.graph):
        found.append(
            "its operators have other implementations, as of another version of headrace, or of "
            "other settings of exact, lossy, conditional and offload"
        )
    return found


def structure(graph: Graph) -> Graph:
    """Return a graph without the costs that are measured."""
    return replace(
        graph,
        operators=tuple(map(_without_costs, graph.operators)),
        resident=dict(sorted(graph.resident.items())),
    )


def _without_costs(operator: Operator) -> Operator:
    ways = (replace(each, time_us=0.0, workspace_bytes=0) for each in operator.implementations)
    return replace(operator, implementations=tuple(ways))


def shapes_of(step: MemoryProfile) -> str:
    """Return the shapes and types of a step's inputs in words."""
    return ", ".join(f"{list(each.shape)} {each.dtype}" for each in step.inputs)


def _resident(made_for: Graph, wanted: Graph) -> list[tuple[str, str, str]]:
    one, other = made_for.resident, wanted.resident
    return [
        (f"bytes of {name}{_BY.get(name, '')}", str(one.get(name, 0)), str(other.get(name, 0)))
        for name in sorted({*one, *other})
    ]
