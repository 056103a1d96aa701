"""``headrace compression measure``: profile a model's step and codecs, on ranks of this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import print_written, warn_if_busy
from headrace.cli.ending import unwound_by_signals
from headrace.cli.former import Former
from headrace.cli.options import output_option, refuse_without_effect, size_option
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.measure.local import EXAMPLE, measure_locally
from headrace.compression.profile import CompressionProfile
from headrace.extras import require
from headrace.units import parse_size

_BUCKET, _STEPS = "25MiB", 10
"""Defaults of --bucket and --steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimesResult:
    """A model's training step, without and with communication, in microseconds."""

    file: WrittenFile
    model: str
    device: str
    batch: int
    gradient_bytes: int
    forward_us: float
    backward_us: float
    other_us: float
    codecs: list[str]


def profile_command(
    output: Annotated[Path, output_option("File to write: the compression profile.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="module:function; the function returns a model and a batch, or a model and a "
            "function from it to the loss.",
            show_default="a small perceptron",
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(help="Number of ranks, on this machine.", min=2, max=1024)
    ] = 2,
    codecs: Annotated[
        str | None, typer.Option(help="Codecs, by commas.", show_default="one of each kind")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Time codecs alone, on the parameters of this profile; the rest is kept from it."
        ),
    ] = None,
    bucket: Annotated[
        str, size_option("DDP's bucket_cap_mb"), Former("--bucket-mb", unit="MiB")
    ] = _BUCKET,
    steps: Annotated[
        int, typer.Option(help="Training steps to measure, of each kind.", min=3)
    ] = _STEPS,
) -> StepTimesResult:
    """Measure a training step without and with communication, and codecs with all ranks encoding.

    In a job of your own, headrace.compression.measure.job.profile_model does so among its ranks.

    Example: headrace compression measure --model package.module:build -o job.profile
    """
    if model is not None and like is not None:
        raise CompressionError("--model and --like given, needs one: --like has its model")
    if like is not None:
        unused = {"--bucket": bucket != _BUCKET, "--steps": steps != _STEPS}
        refuse_without_effect(unused, "with --like, which times codecs alone")
    require("torch", "torch", "measuring a training step")
    specs = [str(CodecSpec.parse(text)) for text in (codecs or "").split(",") if text.strip()]
    with unwound_by_signals():  # which ends the ranks, and removes their folder
        profile = measure_locally(
            model or EXAMPLE,
            ranks=ranks,
            codecs=specs,
            like=None if like is None else CompressionProfile.load(like),
            bucket_cap_mb=parse_size(bucket, "--bucket") / 2**20,
            steps=steps,
        )
    profile.save(output)
    print_written(output)
    warn_if_busy(profile.provenance)
    return result_of(
        StepTimesResult, profile, file=WrittenFile.at(output), codecs=list(profile.codecs)
    )
