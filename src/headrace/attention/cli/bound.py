"""``headrace attention bound``: what a plan can gain at most, for requests, tokens and a device."""

from dataclasses import dataclass
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
from headrace.attention.plan.step import decoding_step, fitting_requests, step_bound
from headrace.cli.console import terminal
from headrace.cli.former import Former
from headrace.cli.options import data_sheet, size_option
from headrace.roofline import Roofline, load_roofline
from headrace.units import parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingResult:
    """Requests that fit into the memory, of so many tokens each."""

    tokens: int
    own_requests: int
    plan_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingResult:
    """A step of decoding by the model's own cache and by the plan's; seconds on a device."""

    requests: int
    tokens: int
    own_read_bytes: float
    plan_read_bytes: float
    own_s: float | None
    plan_s: float | None
    faster_at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundResult:
    """Requests that fit, and bounds of steps; no steps for a plan without weights."""

    fitting: list[FittingResult]
    steps: list[DecodingResult]


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
    for table in serving_tables(
        cache_plan,
        everything=True,
        requests=requests,
        tokens=cached_tokens,
        memory_bytes=memory_bytes,
        device=roofline,
    ):
        terminal().print(table)
    own = cache_plan.uncompressed()
    fitting = [
        FittingResult(
            tokens=count,
            own_requests=fitting_requests(own, tokens=count, memory_bytes=memory_bytes),
            plan_requests=fitting_requests(cache_plan, tokens=count, memory_bytes=memory_bytes),
        )
        for count in cached_tokens
    ]
    steps = [
        _decoding(cache_plan, batch, count, roofline)
        for batch in requests
        for count in cached_tokens
        if cache_plan.weights is not None
    ]
    return BoundResult(fitting=fitting, steps=steps)


def _decoding(
    plan: AttentionPlan, batch: int, tokens: int, device: Roofline | None
) -> DecodingResult:
    own = decoding_step(plan.uncompressed(), batch=batch, tokens=tokens)
    planned = decoding_step(plan, batch=batch, tokens=tokens)
    return DecodingResult(
        requests=batch,
        tokens=tokens,
        own_read_bytes=float(own.read_bytes),
        plan_read_bytes=float(planned.read_bytes),
        own_s=None if device is None else own.seconds(device),
        plan_s=None if device is None else planned.seconds(device),
        faster_at_most=step_bound(plan, batch=batch, tokens=tokens, device=device),
    )
