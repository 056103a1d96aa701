"""``headrace attention run``: generation with a plan's cache, beside the model's own."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headrace.attention.cli.models import (
    FolderArgument,
    PlanOption,
    TypeOption,
    check_positions,
    load_folder,
)
from headrace.attention.errors import AttentionError
from headrace.attention.plan.formats import BLOCK_TOKENS
from headrace.attention.plan.plan import AttentionPlan
from headrace.cli.console import terminal
from headrace.cli.former import Former
from headrace.cli.tables import rows
from headrace.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A prompt's continuation with a cache: the model's own, or the plan's."""

    cache: str
    bytes: int
    tokens: int
    seconds: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationsResult:
    """The continuations, and layers of the prompt by the kernel of its scores."""

    generations: list[GenerationResult]
    prompt_layers: dict[str, int]


def continue_command(
    folder: FolderArgument,
    plan: PlanOption,
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    new_tokens: Annotated[
        int, typer.Option(help="Tokens to generate.", min=1), Former("--tokens")
    ] = 64,
    dtype: TypeOption = "float32",
) -> GenerationsResult:
    """Continue a prompt with a plan's cache and with the model's own, and print both.

    Example: headrace attention run ./model --plan model.plan --prompt 'the value of'
    """
    cache_plan = AttentionPlan.load(plan)
    model, tokenizer = load_folder(folder, dtype)
    from transformers import DynamicCache

    import headrace.attention
    from headrace.attention.run.layer import SHARED

    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise AttentionError("--prompt has no tokens, needs at least one")
    check_positions(model, inputs["input_ids"].shape[1] + new_tokens, "--prompt and --new-tokens")
    table: list[tuple[str, ...]] = []
    generations: list[GenerationResult] = []
    caches: dict[str, Any] = {
        "model's own": DynamicCache(),
        "plan's": headrace.attention.cache(model, cache_plan),
    }
    for name, cache in caches.items():
        own = isinstance(cache, DynamicCache)
        began = time.perf_counter()
        with nullcontext() if own else headrace.attention.compress(model, cache_plan):
            output = model.generate(  # type: ignore[operator]
                **inputs, max_new_tokens=new_tokens, do_sample=False, cache=cache
            )
        seconds = time.perf_counter() - began
        new = output[0, inputs["input_ids"].shape[1] :]
        rate = f"{len(new) / seconds:.1f}"
        text = tokenizer.decode(new, skip_special_tokens=True)
        cache_bytes = _cache_bytes(cache)
        table.append((name, size(cache_bytes), rate, text))
        generations.append(
            GenerationResult(
                cache=name, bytes=cache_bytes, tokens=len(new), seconds=seconds, text=text
            )
        )
    title = f"a plan's cache grows by {BLOCK_TOKENS} tokens at a time"
    for part in rows(title, ("cache", "bytes", "tokens/s", "text"), table, everything=True):
        terminal().print(part)
    paths: dict[str, int] = dict(getattr(caches["plan's"], "prompt_paths", {}))
    for path, layers in paths.items():
        stock = "" if path == SHARED else "the stock kernel computed all heads' scores: "
        terminal().print(f"prompt, in {layers} layers: {stock}{path}", soft_wrap=True)
    return GenerationsResult(generations=generations, prompt_layers=paths)


def _cache_bytes(cache: Any) -> int:
    if hasattr(cache, "allocated_bytes"):
        return cache.allocated_bytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
