"""Steps of a whole decoder: a plan's caches beside our full attention and Transformers' caches."""

import gc
import operator
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

import headrace.attention
from benchmarks.attention.cells import check_close, one_thread
from benchmarks.attention.decoders import DIM, HIDDEN, copied_heads, decoder, plans
from benchmarks.harness import Report
from headrace.attention import AttentionPlan
from headrace.attention.plan.step import decoding_step, step_bound
from headrace.attention.run.cache import CompressedLayer
from headrace.memory.measure.available import available_bytes

BATCH, TOKENS = 4, 4096
_UNFUSED = "unfused"
_PROMPT = 8
_ROUNDS, _QUICK_ROUNDS = 5, 3
_REPEATS = 4
_ROUNDING = 1.5e-2
"""Largest difference of logits over the largest logit, for the root of the number of layers: in
bfloat16 two of PyTorch's own kernels differ by 0.016 after 4 layers, by 0.034 after 16."""
_COPIES = ("clusters", "fixed clusters")
"""Whose heads are copies: products of fewer rows may round otherwise, half as much."""
_LAYER_BYTES = 1 << 30
"""Of a layer and its share of the vocabulary, its caches, and what the default one copies."""


def bars() -> dict[str, str]:
    """Return the bars: steps of a model, the worst of two."""
    return {
        "step-clusters-of-bound": ">=0.7",
        "step-int8-over-static": ">=1.1",
        "step-int8-over-static-gqa": ">=1.03",
        "step-int8-over-default": ">=1.5",
        "step-int8-over-default-gqa": ">=1.2",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Measure both models; fewer layers where memory for all is missing."""
    layers = 4 if quick else _affordable_layers()
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    one_thread(lambda: _measure(report, layers, rounds))
    report.note(
        f"generate: {layers} of 16 layers of 2,048 and as large a share of the vocabulary of "
        f"128,256, random weights in bfloat16 of which heads are copies, {BATCH} requests of "
        f"{TOKENS:,} tokens; processor time of one thread; of bound: (measured - 1) / (bound - 1), "
        "the bound by bytes; at rates: the same with the rates at which this machine multiplies "
        "these weights and reads; unfused: Transformers' eager attention, the paper's baseline"
    )


def _affordable_layers() -> int:
    available = available_bytes(torch.device("cpu"))
    fitting = 16 if available is None else available // _LAYER_BYTES
    return next((layers for layers in (16, 8) if layers <= fitting), 4)


def _measure(report: Report, layers: int, rounds: int) -> None:
    for key_value_heads, suffix in ((32, ""), (8, "-gqa")):
        compared = _compared(layers, key_value_heads, rounds)
        seconds = compared.seconds
        for name, figure in seconds.items():
            report.row(
                "steps of a decoder",
                key_value_heads=key_value_heads,
                cache=name,
                ms=1e3 * figure,
                over_full=compared.over_full.get(name, seconds["full"] / figure),
                bound=compared.bounds.get(name),
                of_bound=compared.of_bound(name, compared.bounds),
                of_bound_at_rates=compared.of_bound(name, compared.bounds_at_rates),
                over_static=seconds["static"] / figure,
                over_default=seconds["default"] / figure,
            )
        if not suffix:
            report.bar("step-clusters-of-bound", compared.of_bound("clusters", compared.bounds))
        report.bar(f"step-int8-over-static{suffix}", seconds["static"] / seconds["int8"])
        report.bar(f"step-int8-over-default{suffix}", seconds["default"] / seconds["int8"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Median seconds of a step by cache; bounds of gains over our full attention, two ways.

    Attributes
    ----------
    over_full : seconds of full attention over those that follow it, by cache of ours; the median.
    bounds : by bytes alone.
    bounds_at_rates : by the rates at which the machine multiplies weights and reads.
    """

    seconds: dict[str, float]
    over_full: dict[str, float]
    bounds: dict[str, float]
    bounds_at_rates: dict[str, float]

    def of_bound(self, name: str, bounds: dict[str, float]) -> float | None:
        """Return the share of a bound's gain that a cache has."""
        if bounds.get(name, 1) == 1:
            return None
        return (self.over_full[name] - 1) / (bounds[name] - 1)


def _compared(layers: int, key_value_heads: int, rounds: int) -> _Compared:
    """Return the times of steps by cache, after the comparison of their logits."""
    model = decoder(layers, key_value_heads)
    compressed = plans(model)
    steps = _Steps(model, compressed)
    logits = {name: steps.run(name)[0] for name in steps.names}
    rounding = _ROUNDING * layers**0.5
    for name in steps.names:
        expected = "full" if name in compressed and name != "full" else "default"
        tolerance = rounding / 2 if name in _COPIES else rounding
        check_close(name, logits[name], logits[expected], tolerance)
    seconds: dict[str, list[float]] = {name: [] for name in steps.names}
    rates: list[tuple[float, float]] = []
    for _ in range(rounds):
        for name in steps.names:
            # Transformers' caches, several times as long, once.
            if name not in compressed:
                seconds[name].append(steps.run(name)[1])
        for _ in range(_REPEATS):
            for name in compressed:
                seconds[name].append(steps.run(name)[1])
            rates.append(_rates(model))
    product_rate, read_rate = map(statistics.median, zip(*rates, strict=True))
    at_rates: dict[str, float] = {}
    for name, plan in compressed.items():
        step = decoding_step(plan, batch=BATCH, tokens=TOKENS)
        at_rates[name] = step.weight_bytes / product_rate + step.cache_bytes / read_rate
    result = _Compared(
        over_full={
            name: statistics.median(map(operator.truediv, seconds["full"], seconds[name]))
            for name in compressed
        },
        seconds={name: statistics.median(times) for name, times in seconds.items()},
        bounds={
            name: step_bound(plan, batch=BATCH, tokens=TOKENS) for name, plan in compressed.items()
        },
        bounds_at_rates={name: at_rates["full"] / figure for name, figure in at_rates.items()},
    )
    del steps, model
    gc.collect()
    return result


def _rates(model: LlamaForCausalLM) -> tuple[float, float]:
    """Return bytes a second of the weights of a product with a token of every request, and read."""
    weights = [layer.mlp.up_proj.weight.detach() for layer in model.model.layers]
    tokens = torch.ones(BATCH, 1, HIDDEN, dtype=torch.bfloat16)
    size = sum(weight.nbytes for weight in weights)
    began = time.thread_time()
    for weight in weights:
        functional.linear(tokens, weight)
    multiplied = time.thread_time()
    for weight in weights:
        weight.view(torch.float32).sum()
    return size / (multiplied - began), size / (time.thread_time() - multiplied)


class _Steps:
    """Caches with the same tokens, and calls of the model that add one to each."""

    def __init__(self, model: LlamaForCausalLM, compressed: dict[str, AttentionPlan]) -> None:
        self._model: Any = model
        self._plans = compressed
        words = model.config.vocab_size
        generator = torch.Generator().manual_seed(1)
        self._prompt = torch.randint(words, (BATCH, _PROMPT), generator=generator)
        self._word = torch.randint(words, (BATCH, 1), generator=generator)
        static = StaticCache(model.config, max_cache_len=TOKENS + _ROUNDS + 2)
        caches: dict[str, Any] = {
            "default": DynamicCache(),
            "static": static,
            **{name: headrace.attention.cache(model, plan) for name, plan in compressed.items()},
        }
        for name, cache in caches.items():
            self._call(name, cache, self._prompt)
        self._caches = caches
        self._fill()

    @property
    def names(self) -> tuple[str, ...]:
        """Our caches and Transformers', and the default one with unfused attention."""
        return (*self._caches, _UNFUSED)

    def run(self, name: str) -> tuple[Tensor, float]:
        """Return the logits of a step, and its seconds of processor time."""
        cache = self._caches["default" if name == _UNFUSED else name]
        if name == _UNFUSED:
            cache.crop(-1)
        return self._call(name, cache, self._word)

    def _call(self, name: str, cache: Any, tokens: Tensor) -> tuple[Tensor, float]:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if name in self._plans:
                stack.enter_context(headrace.attention.compress(self._model, self._plans[name]))
            else:
                self._model.set_attn_implementation("eager" if name == _UNFUSED else "sdpa")
            began = time.thread_time()
            logits = self._model(input_ids=tokens, cache=cache, logits_to_keep=1).logits
            return logits.float(), time.thread_time() - began

    def _fill(self) -> None:
        """Add the same keys, equal for heads that are copies, and values to all caches."""
        heads = self._model.config.num_key_value_heads
        for index in range(self._model.config.num_hidden_layers):
            torch.manual_seed(index)
            shape = (BATCH, heads, TOKENS - _PROMPT, DIM)
            keys, values = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(2))
            keys = keys[:, copied_heads(heads)]
            for cache in self._caches.values():
                layer = cache.layers[index]
                add = layer.layer.extend if isinstance(layer, CompressedLayer) else layer.update
                add(keys, values)
