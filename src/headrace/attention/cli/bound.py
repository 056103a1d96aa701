"""``headrace attention bound``: what a plan can gain at most, for requests, tokens and a device."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.attention.cli.run import PlanOption
from headrace.attention.cli.show import (
    SERVED_GIB,
    SERVED_REQUESTS,
    SERVED_TOKENS,
    serving_tables,
)
from headrace.attention.plan.plan import AttentionPlan
from headrace.cli.console import terminal
from headrace.cli.options import Former, data_sheet, size_option
from headrace.roofline import load_roofline
from headrace.units import parse_size


def bound_command(
    plan: PlanOption,
    requests: Annotated[
        list[int], typer.Option(help="Of a step, any number of times.", min=1)
    ] = list(SERVED_REQUESTS),  # noqa: B006
    cached_tokens: Annotated[
        list[int],
        typer.Option(help="Tokens in every request's cache, any number of times.", min=1),
        Former("--tokens"),
    ] = list(SERVED_TOKENS),  # noqa: B006
    cache_memory: Annotated[
        str, size_option("Memory of a cache: of all requests'"), Former("--memory", unit="GiB")
    ] = f"{SERVED_GIB}GiB",
    device: Annotated[
        Path | None,
        data_sheet("Times by a model of a device"),
    ] = None,
) -> None:
    """Print what a step of decoding reads by a plan, its bound, and the requests that fit."""
    cache_plan = AttentionPlan.load(plan)
    for table in serving_tables(
        cache_plan,
        everything=True,
        requests=requests,
        tokens=cached_tokens,
        memory_bytes=parse_size(cache_memory, "--cache-memory"),
        device=None if device is None else load_roofline(device),
    ):
        terminal().print(table)
