"""Columns of a batch's ids by the embedding table that they feed, as a run of the model shows.

Every id of a small batch is replaced by a number of its own. A module that gets these numbers,
copied or in another order, looks up the ids of their columns; one that gets others computes its
ids.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.model.modules import EmbeddingModule
from headrace.evaluation import evaluating
from headrace.preserve import objects_preserved

_FIRST_INT32 = 1 << 30
_FIRST = (1 << 62) + _FIRST_INT32
"""First of the numbers, also as an int32: a model that takes a remainder, of up to as many rows,
changes them."""


_COMPARISONS = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge", "isin", "bool", "to", "type", "logical_not"),
        *("not_equal", "less", "less_equal", "greater", "greater_equal"),
    )
)
"""Names of torch's functions whose results, where they are true or false, follow from values."""

_OF_SHAPES = frozenset(("expand_as", "reshape_as", "view_as"))
"""Names of those whose results follow from the shape of an argument, besides `zeros_like` and
`new_zeros` and their like."""

_BY_INDICES = frozenset(("bincount", "gather", "one_hot"))
"""Names of those that raise RuntimeError for indices that are too large."""


def table_columns(
    model: nn.Module,
    modules: Sequence[EmbeddingModule],
    ids: Tensor,
    call: Callable[[Tensor], object],
) -> list[tuple[int, ...]]:
    """Return the columns of ids that each module looks up, rising.

    The model is in the mode for evaluation meanwhile; its modes, buffers and attributes, and the
    random state, are restored.

    Parameters
    ----------
    ids : [examples, columns] int64: of their number of examples and columns alone.
    call : runs the model on such ids.

    Raises
    ------
    EmbeddingError : a module gets ids that `forward` computes, or of some examples alone, or none;
        no module uses a column; `forward` uses ids as indices itself, compares them, or computes
        numbers of them.
    """
    numbers = torch.arange(_FIRST, _FIRST + ids.numel()).reshape(ids.shape)
    columns: dict[str, set[int]] = {embedding.name: set() for embedding in modules}

    def observe(embedding: EmbeddingModule, lookups: Tensor) -> None:
        columns[embedding.name] |= _columns_of(lookups, ids.shape, embedding.name)

    with (
        torch.compiler.set_stance("force_eager"),  # compiling a single run takes minutes
        objects_preserved(model),
        evaluating(model),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
    ):
        try:
            with LookupsObserved(modules, observe):
                call(numbers)
        except IndexError as error:
            raise _indices_error(error) from error
    for name, own in columns.items():
        if not own:
            raise EmbeddingError(
                f"{name} looks up nothing in evaluation mode, in which fit runs the model: remove "
                "it from the model, or give its columns as ids={...}"
            )
    used = set[int]().union(*columns.values())
    if unused := set(range(ids.shape[1])) - used:
        raise EmbeddingError(
            f"no embedding module looks up the ids of column {min(unused)} in evaluation mode, in "
            "which fit runs the model: it needs one, or give the columns as ids={...}"
        )
    return [tuple(sorted(columns[embedding.name])) for embedding in modules]


def _indices_error(error: Exception) -> EmbeddingError:
    return EmbeddingError(
        f"forward uses ids as indices elsewhere than in its embedding modules ({error}): numbers "
        "stand for those of the data. Look up by nn.Embedding or nn.EmbeddingBag"
    )


class LookupsObserved(TorchFunctionMode):
    """Lets lookups in weights of embedding modules return zeros, and refuses other uses of ids.

    Lookups are those of torch's functions, so what a subclass of a module computes in its own
    `forward` is seen. They have to be within a call of the module, whose hook replaces the numbers
    of a batch by those of rows. What is computed of ids would be computed of the numbers.

    Parameters
    ----------
    observe : called with each module whose weight is looked up in, and the ids.
    """

    def __init__(
        self,
        modules: Sequence[EmbeddingModule],
        observe: Callable[[EmbeddingModule, Tensor], None],
    ) -> None:
        super().__init__()
        self._by_weight = {id(embedding.module.weight): embedding for embedding in modules}
        self._observe = observe
        self._called: list[nn.Module] = []  # modules whose call is under way
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for embedding in self._by_weight.values():
            self._hooks += (
                embedding.module.register_forward_pre_hook(self._begin_call),
                embedding.module.register_forward_hook(self._end_call),
            )
        super().__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        for hook in self._hooks:
            hook.remove()

    def _begin_call(self, module: nn.Module, *_: object) -> None:
        self._called.append(module)

    def _end_call(self, *_: object) -> None:
        self._called.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch."""
        options = kwargs or {}
        if func in (functional.embedding, functional.embedding_bag):
            ids, weight = args[:2]
            if (embedding := self._by_weight.get(id(weight))) is not None:
                self._check_call(embedding)
                self._observe(embedding, ids)
                shape = ids.shape if func is functional.embedding else _bags(ids, **options)
                # not on the device of a weight elsewhere
                return torch.zeros(*shape, embedding.dim, dtype=weight.dtype, device=ids.device)
        arguments = [*_flat((*args, *options.values()))]
        name = getattr(func, "__name__", "").strip("_")
        try:
            result = func(*args, **options)
        except RuntimeError as error:
            if name in _BY_INDICES and any(map(_are_ids, arguments)):
                raise _indices_error(error) from error
            raise
        self._check_rows(arguments, result)
        if (use := _use_of_values(name, result)) and any(map(_are_ids, arguments)):
            raise EmbeddingError(
                f"forward {use} ids ({name}), as for a mask or a feature, and numbers stand for "
                "those of the data: compute it in the data, as dense features, or give the columns "
                "as ids={...} where nothing follows from it"
            )
        return result

    def _check_call(self, embedding: EmbeddingModule) -> None:
        if embedding.module not in self._called:
            raise EmbeddingError(
                f"forward looks up rows of {embedding.name} without a call of the module, by a "
                "function of torch or by its forward(): call it, which numbers of a batch need"
            )

    def _check_rows(self, arguments: Sequence[Any], result: object) -> None:
        """Raise EmbeddingError where a result has a column for every row of a table."""
        for argument in arguments:
            embedding = self._by_weight.get(id(argument))
            if embedding is None or not isinstance(result, Tensor) or result.ndim < 2:
                continue
            if result.shape[-1] == embedding.rows != embedding.dim:
                raise EmbeddingError(
                    f"forward computes with all rows of {embedding.name}, as for a softmax over "
                    "items, and a batch has those of its ids alone: score candidates whose ids are "
                    "columns of the data"
                )


def _bags(
    ids: Tensor, *, offsets: Tensor | None, include_last_offset: bool, **_: object
) -> tuple[int]:
    """Return the number of bags of a call of `functional.embedding_bag`."""
    return (len(ids) if offsets is None else len(offsets) - include_last_offset,)


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and those in lists, as of `torch.cat`."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from cast("list[Any]", argument)
        else:
            yield argument


def _use_of_values(name: str, result: object) -> str:
    """Return the use that a function of torch makes of the values of its arguments; "": none.

    Integers may be the same ids in another order, as lookups show.
    """
    if not isinstance(result, Tensor):
        return ""
    if result.dtype == torch.bool:
        return "compares" if name in _COMPARISONS else ""
    of_shape = name.startswith("new_") or name.endswith("_like") or name in _OF_SHAPES
    return "computes with" if result.dtype.is_floating_point and not of_shape else ""


def _are_ids(argument: object) -> bool:
    if not isinstance(argument, Tensor) or argument.dtype not in (torch.int32, torch.int64):
        return False
    return argument.numel() > 0 and int(argument.min()) >= _FIRST_INT32


def _columns_of(lookups: Tensor, shape: torch.Size, name: str) -> set[int]:
    examples, columns = shape
    if lookups.dtype.is_floating_point:
        raise EmbeddingError(f"{name} gets ids of {lookups.dtype}, needs int64 or int32")
    first = _FIRST_INT32 if lookups.dtype == torch.int32 else _FIRST
    places = lookups.flatten().long() - first
    if len(places) and (int(places.min()) < 0 or int(places.max()) >= examples * columns):
        raise EmbeddingError(
            f"{name} gets ids that forward computes: compute them in the data, before the batch, "
            "and let an nn.Parameter hold rows that belong to no ids, such as those of positions"
        )
    counts = torch.bincount(places, minlength=examples * columns).reshape(examples, columns)
    present = counts[0] > 0
    if not bool(((counts > 0) == present).all()):
        raise EmbeddingError(
            f"{name} looks up the ids of some examples of a batch alone: give its columns as "
            "ids={...}"
        )
    return set(present.nonzero().flatten().tolist())
