"""``headrace attention bound``: what a plan can gain at most, for requests, tokens and a device."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.attention.cli.run import PlanOption
from headrace.attention.cli.serving import (
    SERVED_GIB,
    SERVED_REQUESTS,
    SERVED_TOKENS,
    BoundResult,
    serving_bound,
    serving_tables,
)
from headrace.attention.plan.plan import AttentionPlan
from headrace.cli.console import terminal
from headrace.cli.former import Former
from headrace.cli.options import data_sheet, size_option
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
) -> BoundResult:
    """Print what a step of decoding reads by a plan, its bound, and the requests that fit.

    Example: headrace attention bound --plan model.plan --requests 16 --cache-memory 16GiB
    """
    cache_plan = AttentionPlan.load(plan)
    memory_bytes = parse_size(cache_memory, "--cache-memory")
    roofline = None if device is None else load_roofline(device)
    bound = serving_bound(
        cache_plan,
        requests=requests,
        tokens=cached_tokens,
        memory_bytes=memory_bytes,
        device=roofline,
    )
    for table in serving_tables(bound, everything=True, memory_bytes=memory_bytes, device=roofline):
        terminal().print(table)
    return bound
