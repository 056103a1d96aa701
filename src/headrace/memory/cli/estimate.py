"""``headrace memory estimate``: the memory of a training step, by the name of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headrace.cli.answers import result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.former import Former
from headrace.cli.options import count_option, data_sheet, size_option
from headrace.cli.progress import activity
from headrace.roofline import UNNAMED_DEVICE, Roofline, load_roofline
from headrace.units import parse_count
from headrace.units import size as size_text

if TYPE_CHECKING:
    from headrace.memory.adapt.estimate import BudgetEstimate, StepEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetResult:
    """Cost of a budget; see `headrace.memory.BudgetEstimate`."""

    budget_bytes: int
    overhead: float | None
    least_bytes: int | None
    eager_batch: int
    largest_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimateResult:
    """Memory of a training step; see `headrace.memory.StepEstimate`."""

    title: str
    batch: int
    inputs: dict[str, list[int]]
    parameter_count: int
    most_bytes: dict[str, int]
    bytes_at_peak: dict[str, int]
    peak_bytes: int
    in_optimizer: bool
    budget: BudgetResult | None


def estimate_step_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A model of timm, a model type of transformers, a folder that save_pretrained "
            "wrote, or a name of the hub whose configuration is cached.",
        ),
    ],
    batch: Annotated[str, count_option("Examples of a batch")] = "1",
    sample_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 24, help="Tokens of a sample.", show_default="512 at most"),
        Former("--length"),
    ] = None,
    pixels: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 24, help="Pixels of an image's side.", show_default="the model's"
        ),
        Former("--size"),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the parameters: float32, bfloat16, float16 or float64.")
    ] = "float32",
    optimizer: Annotated[
        str, typer.Option(help="A class of torch.optim, with its defaults, or none.")
    ] = "AdamW",
    budget: Annotated[
        str | None,
        size_option("Memory of a training step: what it costs, and the largest batch within it"),
    ] = None,
    device: Annotated[Path | None, data_sheet("Times by a model of a device, for --budget")] = None,
) -> StepEstimateResult:
    """Estimate the memory of a training step by a model's name, without weights or a download.

    Forward pass, backward pass and the optimizer's step run on tensors without values, as PyTorch
    runs them on a CPU; what operators allocate inside of themselves is not counted.

    Example: headrace memory estimate resnet50 --batch 8 --budget 2GiB
    """
    from headrace.memory import estimate

    with activity(terminal(stderr=True)) as report:
        step = estimate(
            name,
            batch=parse_count(batch, "--batch"),
            length=sample_tokens,
            size=pixels,
            dtype=dtype,
            optimizer=optimizer,
            budget=budget,
            device=device,
            progress=report,
        )
    roofline = UNNAMED_DEVICE if device is None else load_roofline(device)
    _print(step, f"{dtype}, {optimizer}", roofline)
    return _result(step)


def _result(step: "StepEstimate") -> StepEstimateResult:
    return result_of(
        StepEstimateResult,
        step,
        inputs={name: list(shape) for name, shape in step.inputs.items()},
        most_bytes=dict(step.most_bytes),
        bytes_at_peak=dict(step.bytes_at_peak),
        budget=None if step.budget is None else result_of(BudgetResult, step.budget),
    )


def _print(step: "StepEstimate", conditions: str, device: Roofline) -> None:
    console = terminal()
    shapes = ", ".join(
        f"{'input' if name.isdigit() else name} {'x'.join(map(str, shape))}"
        for name, shape in step.inputs.items()
    )
    console.print(
        text_of(f"{step.title}: {step.parameter_count:,} parameters, {conditions}, {shapes}."),
        soft_wrap=True,
    )
    table = Table("", "most", "at the peak", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in sorted(step.most_bytes, key=lambda kind: -step.most_bytes[kind]):
        most, at_peak = step.most_bytes[kind], step.bytes_at_peak.get(kind, 0)
        if most:
            table.add_row(kind, size_text(most), size_text(at_peak))
    table.add_row("step", size_text(step.peak_bytes), size_text(step.peak_bytes))
    console.print(table)
    where = "the optimizer's step" if step.in_optimizer else "the forward and backward pass"
    console.print(f"The peak is in {where}.", soft_wrap=True)
    if step.budget is not None:
        console.print(_budget_text(step.budget, step.batch, device), soft_wrap=True)


def _budget_text(budget: "BudgetEstimate", batch: int, device: Roofline) -> str:
    within = f"Within {size_text(budget.budget_bytes)}"
    if budget.overhead is not None:
        text = (
            f"{within} a step of {batch} takes {budget.overhead:z.1%} more time, by {device.name} "
            f"of {device.flops_per_s / 1e12:.4g} Tflop/s and {device.bytes_per_s / 1e9:.4g} GB/s."
        )
    else:
        least = "" if budget.least_bytes is None else f": needs {size_text(budget.least_bytes)}"
        text = f"{within} no schedule of a step of {batch} fits{least}."
    largest = "not known" if budget.largest_batch is None else str(budget.largest_batch)
    return (
        f"{text_of(text)} Largest batch: {largest} with headrace.memory.fit, about "
        f"{budget.eager_batch} as it is."
    )
