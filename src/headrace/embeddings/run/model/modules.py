"""Embedding modules of a model: which there are, and which of their options are served."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from headrace.embeddings.errors import EmbeddingError

Module = nn.Embedding | nn.EmbeddingBag

_OF_COMPUTED_WEIGHTS = ("parametrizations.weight.", "weight_")
"""Begin the names of parameters that torch's parametrizations, and its older functions such as
`weight_norm`, compute a weight of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingModule:
    """An embedding module, whose weight is a table.

    Attributes
    ----------
    name : in the model, of its weight's table.
    weight_name : of the weight in the model's state.
    """

    name: str
    module: Module
    weight_name: str = "weight"

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.module.num_embeddings

    @property
    def dim(self) -> int:
        """Numbers of a row."""
        return self.module.embedding_dim

    @property
    def padding(self) -> int | None:
        """Id whose row is never updated; None: there is none."""
        return self.module.padding_idx

    def take_weight(self) -> Tensor:
        """Return the weight, which is no parameter of the model any more.

        Its place has no rows until `set_rows`.
        """
        weight = self.module.weight.detach()
        self.module.sparse = False  # a batch uses all rows of the tensors that take its place
        self.set_rows(torch.empty(0, self.dim, dtype=weight.dtype))
        return weight

    def restoring(self) -> Callable[[], None]:
        """Return a function that sets the module back as it is now."""
        module = self.module
        weight, padding, sparse = module.weight, module.padding_idx, module.sparse

        def restore() -> None:
            self.set_rows(weight, padding=padding, registered=True)
            module.sparse = sparse

        return restore

    def set_rows(
        self, rows: Tensor, *, padding: int | None = None, registered: bool = False
    ) -> None:
        """Let the module look up in these rows: [rows of a batch, dim].

        Parameters
        ----------
        padding : the row among them of the table's padding, if they have it.
        registered : whether they are a parameter of the model meanwhile; only an `nn.Parameter`.
        """
        self.module.padding_idx = padding  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(AttributeError):
            del self.module.weight
        if registered:
            self.module.weight = cast(nn.Parameter, rows)
        else:
            vars(self.module)["weight"] = rows


def embedding_modules(model: nn.Module) -> list[EmbeddingModule]:
    """Return a model's embedding modules, in their order; one that has two names is listed once.

    Raises
    ------
    EmbeddingError : there is none; an option of one is not served.
    """
    modules = [
        EmbeddingModule(
            name=name or type(module).__name__,
            module=module,
            weight_name=f"{name}.weight" if name else "weight",
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    if not modules:
        raise EmbeddingError("the model has no nn.Embedding and no nn.EmbeddingBag")
    for embedding in modules:
        _check(embedding)
    _check_shared(model, modules)
    return modules


def _check_shared(model: nn.Module, modules: Sequence[EmbeddingModule]) -> None:
    """Raise EmbeddingError where another module has the weight of one, too."""
    names: dict[int, str] = {}
    for embedding in modules:
        same = names.setdefault(id(embedding.module.weight), embedding.name)
        if same != embedding.name:
            raise EmbeddingError(
                f"{embedding.name} and {same} share a weight: let one module look up for both"
            )
    embeddings = {embedding.module for embedding in modules}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if id(parameter) in names and module not in embeddings:
                raise EmbeddingError(
                    f"{names[id(parameter)]} and {name} share a weight, of which a batch has some "
                    f"rows alone: give {name} values of its own"
                )


def _check(embedding: EmbeddingModule) -> None:
    module = embedding.module
    if not isinstance(module.weight, nn.Parameter) or len(module.weight) != embedding.rows:
        for name, _ in module.named_parameters():
            if name.startswith(_OF_COMPUTED_WEIGHTS):
                raise EmbeddingError(
                    f"the weight of {embedding.name} is computed of {name}, as by weight_norm, "
                    "which is not served: make the module without it"
                )
        raise EmbeddingError(
            f"the weight of {embedding.name} is no parameter of {embedding.rows} rows, as in a "
            "model that was fitted before: make a new model, and take trained rows to it by "
            "batches.save and batches.load"
        )
    if not module.weight.requires_grad:
        raise EmbeddingError(
            f"the weight of {embedding.name} has requires_grad=False, which is not served: leave "
            "it trainable, in a parameter group with lr=0, which changes no row"
        )
    refused = {
        "max_norm": module.max_norm is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        "mode='max'": getattr(module, "mode", "sum") == "max",
    }
    for option, is_set in refused.items():
        if is_set:
            raise EmbeddingError(
                f"{embedding.name} has {option}, which is not served: make the module without it"
            )
    if module.weight.dtype not in (torch.float32, torch.float64):
        raise EmbeddingError(
            f"{embedding.name} has rows of {module.weight.dtype}, needs float32 or float64"
        )
