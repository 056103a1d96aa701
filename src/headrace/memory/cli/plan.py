"""``headrace memory plan``: the fastest schedule of a training step within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, terminal, text_of
from headrace.cli.interrupts import interrupts
from headrace.cli.options import (
    Seed,
    check_output,
    flag,
    output_option,
    size_option,
    with_options,
)
from headrace.cli.progress import activity
from headrace.errors import InputError
from headrace.memory.cli import measure
from headrace.memory.errors import BudgetError
from headrace.memory.exactness import Exactness
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import Schedule
from headrace.units import duration, size

if TYPE_CHECKING:
    from headrace.memory.plan.plan import MemoryPlan


LargestBatchFlag = Annotated[
    bool,
    flag(
        "--largest-batch", "Plan the largest batch that fits; MODEL's function takes a batch size."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlanResult:
    """A schedule within a budget; energies in microjoules, None unless it was minimised."""

    file: WrittenFile
    budget_bytes: int
    peak_bytes: int
    time_us: float
    bound_us: float
    gap: float
    energy_uj: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlansResult:
    """Plans, the smallest budget first, and whether Ctrl-C ended the search."""

    plans: list[SchedulePlanResult]
    interrupted: bool


@with_options(options=measure.profile_options)
def plan_step_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE|MODEL",
            help="A memory profile, or module:function as for measure, which is then measured.",
        ),
    ],
    budget: Annotated[
        str,
        size_option(
            "Memory of a training step. Of several, by commas, each gets a plan of its own, and "
            "its budget in the file's name; each"
        ),
    ],
    output: Annotated[Path, output_option("File to write: the memory plan.")],
    *,
    effort: Annotated[SolveEffort, typer.Option(help="Search effort.")] = SolveEffort.NORMAL,
    seed: Seed = 0,
    start: Annotated[
        Path | None,
        typer.Option(help="Plan of the same step, such as for another budget, to start from."),
    ] = None,
    largest_batch: LargestBatchFlag = False,
    cache: Annotated[
        bool, typer.Option(help="Take measured costs from the cache folder, and keep them there.")
    ] = True,
    options: measure.ProfileOptions,
    energy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Minimise energy in place of time: a JSON object of watts by kind of operator, "
            'such as {"convolution": 42, "default": 15}.',
        ),
    ] = None,
) -> MemoryPlansResult:
    """Find what to store, what to recompute and how to compute it within a budget.

    Ctrl-C ends the search with the fastest schedule so far.

    Example: headrace memory plan step.profile --budget 6GiB -o step.plan
    """
    # the solvers take long to import
    from headrace._native import ScheduleSearch
    from headrace.memory.plan.energy import load_watts, unknown_kinds
    from headrace.memory.plan.make import parse_budget
    from headrace.memory.plan.plan import MemoryPlan
    from headrace.memory.plan.sweep import sweep

    watts = None if energy is None else load_watts(energy)
    texts = [text.strip() for text in budget.split(",")]
    budgets = {parse_budget(text): text for text in texts}
    files = {
        nbytes: output if len(budgets) == 1 else _named(output, text)
        for nbytes, text in budgets.items()
    }
    for path in files.values():
        check_output(path, [Path(source), start])
    options = replace(options, cache=cache)
    profile = _profile(source, list(budgets), options, largest_batch=largest_batch)
    if watts is not None and (unknown := unknown_kinds(watts, profile.graph)):
        terminal(stderr=True).print(
            f"{energy}: the step has no operator of kind {', '.join(unknown)}", soft_wrap=True
        )
    starts = _starts(start, profile)
    with activity(terminal(stderr=True)) as report, interrupts() as interrupt:
        report("planning")
        plans = sweep(
            profile,
            budgets,
            ScheduleSearch,
            effort=effort,
            seed=seed,
            progress=lambda at, state: report(
                f"planning {budgets[at]}: {state if watts is None else f'gap {state.gap:z.1%}'}"
            ),
            interrupt=interrupt,
            starts=starts,
            watts=watts,
        )
    failed: list[str] = []
    results: list[SchedulePlanResult] = []
    for at, plan in sorted(plans.items()):
        if isinstance(plan, MemoryPlan):
            plan.verify()
            path = files[at]
            plan.save(path)
            _print(plan, path)
            results.append(result_of(SchedulePlanResult, plan, file=WrittenFile.at(path)))
        else:
            failed.append(str(plan) if len(plans) == 1 else f"{budgets[at]}: {plan}")
    if interrupt() and len(failed) < len(plans):
        text = "The search was interrupted: plans are the fastest found until then."
        terminal(stderr=True).print(text, soft_wrap=True)
    if failed:
        raise BudgetError("; ".join(failed))
    return MemoryPlansResult(plans=results, interrupted=interrupt())


def _profile(
    source: str, budgets: Sequence[int], options: measure.ProfileOptions, *, largest_batch: bool
) -> MemoryProfile:
    is_file = Path(source).exists()
    if not is_file and ":" not in source:
        raise InputError(
            f"there is no file {source!r}: make a profile with headrace memory measure, or name a "
            "module:function"
        )
    if is_file and Path(source).suffix == ".py":
        raise InputError(
            f"{source} is a module: name its function, too, such as {Path(source).stem}:build"
        )
    if is_file and not largest_batch:
        return _loaded(source, options)
    if not largest_batch:
        return measure.measured_profile(source, options)
    from headrace.memory.cli.batch import largest_batch as find_largest

    if is_file or len(budgets) > 1:
        raise InputError("--largest-batch needs module:function in place of a file, and one budget")
    with activity(terminal(stderr=True)) as report:
        batch, profile = find_largest(source, budgets[0], options, report)
    terminal().print(f"Largest batch: {batch}.")
    return profile


def _loaded(source: str, options: measure.ProfileOptions) -> MemoryProfile:
    profile, exactness = MemoryProfile.load(source), options.exactness
    conditional = exactness is Exactness.CONDITIONAL  # a profile does not tell its variants apart
    asked = {**options.conditions, "conditional": conditional, "device": options.device}
    if refused := [f"--{name}" for name, value in asked.items() if value]:
        raise InputError(
            f"{source} is a profile already: {', '.join(refused)} is for headrace memory measure, "
            "or for module:function in its place"
        )
    ways = [variant for operator in profile.graph.operators for variant in operator.implementations]
    if exactness is Exactness.LOSSY and all(variant.name != "with bf16" for variant in ways):
        raise InputError(
            f"{source} has no implementations that store bfloat16; for a lossy plan make it again "
            "with headrace memory measure --lossy"
        )
    if exactness is Exactness.EXACT and any(variant.reorders for variant in ways):
        raise InputError(
            f"{source} has implementations whose results differ by rounding; for an exact plan "
            "make it again with headrace memory measure --exact"
        )
    return profile


def _starts(start: Path | None, profile: MemoryProfile) -> tuple[Schedule, ...]:
    from headrace.memory.plan.plan import MemoryPlan
    from headrace.memory.plan.step_match import require_match

    if start is None:
        return ()
    earlier = MemoryPlan.load(start)
    require_match(earlier, profile, str(start))
    return (earlier.schedule,)


def _named(output: Path, budget: str) -> Path:
    return output.with_name(f"{output.stem}-{budget.replace(' ', '')}{output.suffix}")


def _print(plan: "MemoryPlan", output: Path) -> None:
    from headrace.memory.plan.plain import plain_step

    plain = plain_step(plan.profile)
    slower = plan.time_us / plain.time_us - 1 if plain.time_us else 0.0
    console = terminal()
    energy, plain_uj = plan.energy_uj, plan.plain_uj
    text = f"Predicted step {duration(plan.time_us)}, {slower:z.1%} over a plain one; "
    if energy and plain_uj:
        over = f"{energy / plain_uj - 1:z.1%} over a plain step's as predicted"
        text += f"energy {energy / 1e6:.4g} J, {over}; "
    console.print(
        f"{text}peak {size(plan.peak_bytes, plan.budget_bytes)} of {size(plan.budget_bytes)}; "
        f"within {plan.gap:z.1%} of the bound.",
        soft_wrap=True,
    )
    console.print(f"Plain step: {text_of(str(plain))}.", soft_wrap=True)
    print_written(output)
