"""``headrace attention measure``: how alike the heads of a model are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.attention.cli.models import (
    FolderArgument,
    SampleTokens,
    TextOption,
    TypeOption,
    check_positions,
    load_folder,
)
from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.former import Former
from headrace.cli.interrupts import interrupts
from headrace.cli.options import output_option
from headrace.cli.progress import progress
from headrace.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class LikenessResult:
    """Samples that the heads of a model's layers were compared on."""

    file: WrittenFile
    samples: int
    tokens: int
    layers: int


def likeness_command(
    folder: FolderArgument,
    output: Annotated[Path, output_option("File to write: the attention profile.")],
    text: TextOption = None,
    samples: Annotated[
        int, typer.Option(help="Of the text, at most; the paper takes 1,024.", min=1)
    ] = 128,
    sample_tokens: Annotated[SampleTokens, Former("--tokens")] = 256,
    dtype: TypeOption = "float32",
) -> LikenessResult:
    """Measure which heads of a model look at the same tokens, and what sharing them changes.

    Ctrl-C ends after the present sample: the profile is of those that are complete.

    Example: headrace attention measure ./model -o heads.profile
    """
    model, tokenizer = load_folder(folder, dtype)
    from headrace.attention.measure.likeness import measure_likeness
    from headrace.attention.measure.text import text_digest, text_of_files, token_samples

    check_positions(model, sample_tokens, "--sample-tokens")
    source = text_of_files(text or ())
    rows = token_samples(tokenizer, source, samples, sample_tokens)
    with progress(terminal(stderr=True), visible=True) as report, interrupts() as stopped:
        profile = measure_likeness(
            model, rows, text=text_digest(source), progress=report, stopped=stopped
        )
    profile.save(output, {"model": str(folder), "text": [str(path) for path in text or ()]})
    written = f"Wrote {text_of(output)} ({size(output.stat().st_size)})"
    if profile.samples < samples:
        reason = "interrupted" if profile.samples < len(rows) else "the text has no more"
        written += f", of {profile.samples} samples: {reason}"
    terminal().print(f"{written}.", soft_wrap=True)
    return result_of(
        LikenessResult, profile, file=WrittenFile.at(output), layers=len(profile.layers)
    )
