"""Projections of queries and keys without the rows of heads that no request's attention reads.

Where membership is fixed, or known of a single request, queries of heads that follow others are not
scored, and keys of the heads that are not stored are gone. Their rows are not read; the numbers in
their places are zeros.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.attention.models import attention_modules, collecting
from headrace.attention.plan.formats import LayerHeads
from headrace.attention.plan.plan import AttentionPlan
from headrace.attention.run.cache import CompressedCache
from headrace.attention.run.membership import UsedHeads

_QUERIES, _KEYS = "q_proj", "k_proj"
_TOLERANCE = 1e-2
"""Relative to the largest number: products of fewer rows at a time are added in another order."""

_separable: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""By modules of attention: a model may have others later, or projections that become plain."""


@contextmanager
def only_used_rows(
    model: nn.Module, plan: AttentionPlan, cache_names: Sequence[str]
) -> Generator[None]:
    """Multiply only the rows of projections meanwhile that a call's cache asks for.

    Without effect on models whose heads are not projected apart from each other.

    Parameters
    ----------
    cache_names : of the argument of attention modules, a `CompressedCache`.
    """
    if not any(layer.clustered for layer in plan.layers) or not _are_separable(model, plan):
        yield
        return
    with ExitStack() as stack:
        for module, heads in _attention_modules(model, plan):
            rows = _UsedRows(heads, cache_names)
            stack.enter_context(_multiplied(module, rows))
            before = module.register_forward_pre_hook(rows.begin, with_kwargs=True, prepend=True)
            after = module.register_forward_hook(rows.end, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


class _UsedRows(threading.local):
    """Heads whose rows one module's call multiplies; threads have calls of their own.

    Attributes
    ----------
    used : None: all.
    """

    used: UsedHeads | None = None

    def __init__(self, heads: LayerHeads, cache_names: Sequence[str]) -> None:
        self.heads = heads
        self._cache_names = cache_names

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy of the module have heads of its own, of no call yet."""
        return type(self), (self.heads, self._cache_names)

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Ask the call's cache for its heads."""
        if torch.compiler.is_compiling():
            return
        hidden = kwargs.get("hidden_states", args[0] if args else None)
        for cache in map(kwargs.get, self._cache_names):
            if isinstance(cache, CompressedCache) and hidden is not None:
                layer: Any = cache.layers[module.layer_idx]
                self.used = layer.layer.used_heads(hidden.shape[0])

    def end(self, module: Any, args: Any, output: Any) -> None:
        """Multiply all rows again in calls outside of the module."""
        del module, args, output
        if not torch.compiler.is_compiling():
            self.used = None


class _UsedProduct:
    """The product of a projection with the rows that are used.

    A class, whose method is the projection's `forward`: a copy of the module then has one of the
    copied weights. A function is not copied.
    """

    def __init__(self, linear: nn.Linear, name: str, rows: _UsedRows) -> None:
        self._linear, self._name, self._rows = linear, name, rows

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the product, with zeros in place of rows that are not used."""
        linear = self._linear
        used = None if torch.compiler.is_compiling() else self._rows.used
        if used is None:
            return functional.linear(hidden, linear.weight, linear.bias)
        runs = used.queries if self._name == _QUERIES else used.keys
        return _product(hidden, linear, runs, self._rows.heads.dim)


@contextmanager
def _multiplied(module: nn.Module, rows: _UsedRows) -> Generator[None]:
    """Let the projections of a module multiply the rows that are used."""
    linears: dict[str, nn.Linear] = {name: getattr(module, name) for name in (_QUERIES, _KEYS)}
    for name, linear in linears.items():
        product = _UsedProduct(linear, name, rows)
        linear.forward = product.forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        for linear in linears.values():
            del linear.forward


def _product(
    hidden: Tensor, linear: nn.Linear, runs: Sequence[tuple[int, int]], dim: int
) -> Tensor:
    """Return a product with the rows of some runs of heads, and zeros for the others."""
    all_bias: Any = linear.bias
    out = hidden.new_zeros(*hidden.shape[:-1], linear.out_features)
    for first, last in runs:
        rows = slice(first * dim, last * dim)
        bias = None if all_bias is None else all_bias[rows]
        out[..., rows] = functional.linear(hidden, linear.weight[rows], bias)
    return out


def _attention_modules(
    model: nn.Module, plan: AttentionPlan
) -> Iterator[tuple[nn.Module, LayerHeads]]:
    """Yield the modules of clustered layers whose queries and keys are plain products."""
    for module, layer in zip(attention_modules(model), plan.layers, strict=True):
        linears = [getattr(module, name, None) for name in (_QUERIES, _KEYS)]
        if not all(_is_plain(linear) for linear in linears) or not _are_used_once(module, linears):
            continue
        sizes = [layer.heads.query_heads, layer.heads.key_value_heads]
        fits = all(
            linear.out_features == count * layer.heads.dim
            for linear, count in zip(linears, sizes, strict=True)
            if isinstance(linear, nn.Linear)
        )
        if layer.clustered and fits:
            yield module, layer.heads


def _are_used_once(module: nn.Module, linears: Sequence[Any]) -> bool:
    """Return whether a module multiplies each by one name: values, too, need all rows of keys'."""
    children = [child for _, child in module.named_modules(remove_duplicate=False)]
    return all(sum(child is linear for child in children) == 1 for linear in linears)


def _is_plain(linear: Any) -> bool:
    """Return whether a product is PyTorch's own, of weights that are plain tensors."""
    return (
        type(linear) is nn.Linear
        and type(linear.weight) is nn.Parameter
        and "forward" not in vars(linear)
    )


def _are_separable(model: nn.Module, plan: AttentionPlan) -> bool:
    """Return whether a head's queries and keys depend on its own rows alone, and values on none.

    A norm over all heads makes them depend on others', and some models take keys for values. Passes
    of two tokens with all rows, and with those of the first head, tell: of two, because the
    embedding of padding is zeros.
    """
    modules = [module for module, _ in _attention_modules(model, plan)]
    if any(module not in _separable for module in modules):
        _separable.update(dict.fromkeys(modules, _probed(model, plan)))
    return all(_separable[module] for module in modules)


def _probed(model: nn.Module, plan: AttentionPlan) -> bool:
    passes: list[list[Tensor]] = []

    def record(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
    ) -> tuple[Tensor, None]:
        del module, mask, options
        passes[-1] += [query[:, 0].float(), key[:, 0].float(), value.float()]
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    device = next(model.parameters()).device
    for used in (None, UsedHeads(queries=((0, 1),), keys=((0, 1),))):
        passes.append([])
        with ExitStack() as stack:
            stack.enter_context(collecting(model, record))
            for module, heads in _attention_modules(model, plan):
                rows = _UsedRows(heads, ())
                rows.used = used
                stack.enter_context(_multiplied(module, rows))
            model(input_ids=torch.tensor([[0, 1]], device=device), use_cache=False)
    return all(
        bool(full.any() and (part - full).abs().max() <= _TOLERANCE * full.abs().max())
        for full, part in zip(*passes, strict=True)
    )
