"""``headrace demo``: from an unknown network to a faster training job."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.answers import result_of
from headrace.cli.console import terminal
from headrace.cli.ending import unwound_by_signals
from headrace.cli.options import Order, Seed, TestbedFile, flag
from headrace.extras import require


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRunResult:
    """A run of the demo's job: medians, in microseconds."""

    backend: str
    ranks: int
    step_us: float
    steps_us: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The demo's job on Gloo and on headrace, and its allreduces as predicted."""

    gloo: TrainingRunResult
    headrace: TrainingRunResult
    speed_up: float
    predicted_us: float
    bound_us: float


def demo_command(
    order: Order = "random",
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 14,
    testbed: TestbedFile = None,
    fallback: Annotated[
        bool, flag("--fallback", "Use loopback, with pacing in headrace's own transport.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Folder to leave the profile and the plan book in.")
    ] = None,
) -> DemoResult:
    """Build an uneven network, measure it, plan for it, and train on Gloo and on headrace.

    Example: headrace demo --order rack --save results
    """
    require("torch", "torch", "the demo")
    # imported here: 'headrace --help' needs none of it
    from headrace.demo.scenario import SPEC, run_demo
    from headrace.demo.show import Show
    from headrace.testbed import TestbedSpec

    started = time.perf_counter()
    console = terminal(highlight=False)
    show = Show(console)
    try:
        with unwound_by_signals():
            comparison = run_demo(
                show,
                spec=SPEC if testbed is None else TestbedSpec.load(testbed),
                order=order,
                seed=seed,
                steps=steps,
                fallback=fallback or None,
                save=save,
            )
    finally:
        show.close()
    console.print(f"[dim]The whole demo took {time.perf_counter() - started:.0f} s.[/]")
    runs = [
        result_of(TrainingRunResult, run, steps_us=list(run.steps_us))
        for run in (comparison.gloo, comparison.headrace)
    ]
    return result_of(DemoResult, comparison, gloo=runs[0], headrace=runs[1])
