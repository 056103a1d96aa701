"""Memory profiles and plans as tables, and the lines of a proof."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from headrace.artifact import Artifact
from headrace.cli.tables import facts, rows
from headrace.job.load import LOAD, load_text
from headrace.memory.plan.baselines import sqrt_schedule
from headrace.memory.plan.plain import plain_step
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import allocated_bytes, verify
from headrace.memory.profile import MemoryProfile
from headrace.units import duration, size


def step_tables(profile: MemoryProfile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: its step as a whole, and its operators."""
    yield facts("memory profile", dict(step_summary(profile)), everything=everything)
    graph = profile.graph
    yield from rows(
        "operators",
        ("operator", "module", "implementation", "time", "workspace", "creates"),
        [
            (
                operator.name,
                operator.module,
                variant.name,
                duration(variant.time_us),
                size(variant.workspace_bytes),
                size(sum(graph.storages[storage].nbytes for storage in variant.creates)),
            )
            for operator in graph.operators
            for variant in operator.implementations
        ],
        everything=everything,
    )


def step_summary(profile: MemoryProfile) -> list[tuple[str, str]]:
    """Return (label, value) rows of a profile."""
    graph, origin = profile.graph, profile.provenance
    checkpointed = verify(graph, sqrt_schedule(graph))
    inputs = ", ".join(
        f"{tensor.name} {'x'.join(map(str, tensor.shape))} {tensor.dtype}"
        for tensor in profile.inputs
    )
    resident = ", ".join(f"{name} {size(count)}" for name, count in graph.resident.items())
    return [
        ("model", f"{profile.model} on {profile.device}, torch {profile.torch}"),
        ("inputs", inputs or "none"),
        ("operators", f"{graph.forward_count} forward, {_backward(profile)} backward"),
        ("resident", f"{size(graph.resident_bytes)} ({resident or 'nothing'})"),
        ("plain", str(plain_step(profile))),
        (
            "sqrt(n)",
            f"{size(checkpointed.peak_bytes)} in {duration(checkpointed.time_us)}, predicted",
        ),
        *([("machine", load_text(origin))] if LOAD in origin else []),
        (str(origin["kind"]), str(origin["source"])),
    ]


def _backward(profile: MemoryProfile) -> int:
    return len(profile.graph.operators) - profile.graph.forward_count


def plan_tables(plan: MemoryPlan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: its figures, and its steps."""
    yield facts("memory plan", dict(plan_summary(plan)), everything=everything)
    memory = allocated_bytes(plan.profile.graph, plan.schedule)
    seen: set[int] = set()
    table: list[tuple[object, ...]] = []
    for index, step in enumerate(plan.schedule.steps):
        operator = plan.profile.graph.operators[step.operator]
        table.append(
            (
                index,
                operator.name,
                operator.module,
                "again" if step.operator in seen else "",
                operator.implementations[step.implementation].name,
                size(memory[index], plan.budget_bytes),
            )
        )
        seen.add(step.operator)
    yield from rows(
        "steps",
        ("step", "operator", "module", "run", "implementation", "memory"),
        table,
        everything=everything,
    )


def plan_summary(plan: MemoryPlan) -> list[tuple[str, str]]:
    """Return (label, value) rows of a plan."""
    graph = plan.profile.graph
    plain = plain_step(plan.profile)
    over = f", {plan.time_us / plain.time_us - 1:+z.1%} of plain" if plain.time_us else ""
    bound, energy = duration(plan.bound_us), plan.energy_uj
    energies: list[tuple[str, str]] = []
    if energy and plan.plain_uj:
        bound = f"{plan.bound / 1e6:.4g} J"
        text = f"{energy / 1e6:.4g} J, {energy / plan.plain_uj - 1:+z.1%} of plain as predicted"
        energies = [("energy", text)]
    again = len(plan.schedule.steps) - len(graph.operators)
    return [
        ("model", f"{plan.profile.model} on {plan.profile.device}"),
        ("budget", size(plan.budget_bytes)),
        ("peak", f"{size(plan.peak_bytes, plan.budget_bytes)}, predicted"),
        ("time", f"{duration(plan.time_us)}, predicted{over}"),
        ("plain", str(plain)),
        *energies,
        ("bound", f"{bound}, gap {plan.gap:z.1%}"),
        ("steps", f"{len(plan.schedule.steps)}, {again} of them again"),
        ("profile", f"{plan.profile.digest[:12]}, {plan.profile.provenance['kind']}"),
    ]


def verify_step_plan(artifact: Artifact, source: str) -> Iterator[str]:
    """Prove a plan's schedule again on its profile's graph.

    Raises
    ------
    ScheduleError : naming the step, operator and storage.
    """
    plan = MemoryPlan.from_artifact(artifact, source)
    proof = plan.verify()
    yield (
        f"ok {artifact.digest[:12]} peak {size(proof.peak_bytes, plan.budget_bytes)} of "
        f"{size(plan.budget_bytes)}, {len(plan.schedule.steps)} steps, {proof.reruns} of them "
        "again; the bound is not part of the proof"
    )
