"""Gains of serving by a plan: their figures, and the tables of these."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.plan.step import compare_steps, fitting_requests
from headrace.cli.tables import rows
from headrace.roofline import Roofline
from headrace.units import duration, size

SERVED_TOKENS = (2048, 8192, 32768)
SERVED_REQUESTS = (1, 16)
SERVED_GIB = 16


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


def serving_bound(
    plan: AttentionPlan,
    *,
    requests: Sequence[int] = SERVED_REQUESTS,
    tokens: Sequence[int] = SERVED_TOKENS,
    memory_bytes: int = SERVED_GIB << 30,
    device: Roofline | None = None,
) -> BoundResult:
    """Return the gains of serving by a plan: requests in memory, and a step's bound.

    Parameters
    ----------
    requests, tokens : of steps: every number of requests with every number of cached tokens.
    memory_bytes : of the caches of all requests.
    device : for seconds of a step; None: its bytes alone.
    """
    own = plan.uncompressed()
    fitting = [
        FittingResult(
            tokens=count,
            own_requests=fitting_requests(own, tokens=count, memory_bytes=memory_bytes),
            plan_requests=fitting_requests(plan, tokens=count, memory_bytes=memory_bytes),
        )
        for count in tokens
    ]
    steps = [
        _decoding(plan, batch, count, device)
        for batch in requests
        for count in tokens
        if plan.weights is not None
    ]
    return BoundResult(fitting=fitting, steps=steps)


def _decoding(
    plan: AttentionPlan, batch: int, tokens: int, device: Roofline | None
) -> DecodingResult:
    comparison = compare_steps(plan, batch=batch, tokens=tokens)
    own, planned = comparison.own, comparison.planned
    return DecodingResult(
        requests=batch,
        tokens=tokens,
        own_read_bytes=float(own.read_bytes),
        plan_read_bytes=float(planned.read_bytes),
        own_s=None if device is None else own.seconds(device),
        plan_s=None if device is None else planned.seconds(device),
        faster_at_most=comparison.bound(device),
    )


def serving_tables(
    bound: BoundResult,
    *,
    everything: bool,
    memory_bytes: int = SERVED_GIB << 30,
    device: Roofline | None = None,
) -> Iterator[RenderableType]:
    """Return the tables of a bound; `memory_bytes` and `device` are those that it is for."""
    yield from rows(
        f"requests that fit into {size(memory_bytes)}",
        ("tokens", "model's own cache", "plan's"),
        [
            (f"{row.tokens:,}", f"{row.own_requests:,}", f"{row.plan_requests:,}")
            for row in bound.fitting
        ],
        everything=everything,
    )
    if not bound.steps:
        return
    read = "reads" if device is None else f"takes on {device.name}"
    yield from rows(
        f"what a step of decoding {read}",
        ("requests", "tokens", "model's own", "plan's", "faster by at most"),
        [
            (
                f"{step.requests:,}",
                f"{step.tokens:,}",
                _step_text(step.own_read_bytes, step.own_s),
                _step_text(step.plan_read_bytes, step.plan_s),
                f"{step.faster_at_most:.2f}x",
            )
            for step in bound.steps
        ],
        everything=everything,
    )


def _step_text(read_bytes: float, seconds: float | None) -> str:
    return size(round(read_bytes)) if seconds is None else duration(1e6 * seconds)
