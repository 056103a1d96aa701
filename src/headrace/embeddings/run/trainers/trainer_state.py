"""State of a trainer in a commit, besides its rows: dense part, optimizers, random numbers."""

import copy
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headrace.embeddings.errors import EmbeddingError
from headrace.facades import offered_by

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Types that every file of a state can have, their subclasses apart."""


@offered_by("headrace.embeddings")
class Stateful(Protocol):
    """An object such as a schedule of the learning rate."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Take a state."""
        ...


class TrainerState:
    """State of a user's training loop, at one trainer.

    Parameters
    ----------
    model : whose embedding weights are taken from it.
    optimizers : that update the model.
    objects : further ones of the user's, by name.

    Raises
    ------
    EmbeddingError : a parameter of the model is in none of the optimizers, or one of these in no
        state; one of `objects` has a state that no file can have.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        objects: Mapping[str, Stateful],
    ) -> None:
        self._parts: dict[str, Stateful] = {
            "model": model,
            **{f"optimizer {number}": optimizer for number, optimizer in enumerate(optimizers)},
            **{f"state {name}": part for name, part in objects.items()},
        }
        updated = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in updated:
                raise EmbeddingError(
                    f"{name} is in no optimizer that fit got, and commits save their states: pass "
                    "all optimizers, or run the job without --state"
                )
        for name in objects:
            self._saved(f"state {name}")
        self._check_values([model, *objects.values()], optimizers)

    def _check_values(
        self, parts: Sequence[Stateful], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Raise EmbeddingError where an optimizer updates a parameter that no part has."""
        saved = {tensor.data_ptr() for part in parts for tensor in _tensors(part.state_dict())}
        for number, optimizer in enumerate(optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.numel() and parameter.data_ptr() not in saved:
                        raise EmbeddingError(
                            f"optimizer {number} has a parameter of shape "
                            f"{[*parameter.shape]} that is not the model's, and commits would "
                            "lose its values: make it the model's, or give fit the module that "
                            "has it as state={...}"
                        )

    def capture(self, *, dense: bool) -> dict[str, Any]:
        """Return a copy of the state.

        Parameters
        ----------
        dense : whether all of it, which is equal at all trainers, or the random state alone.

        Raises
        ------
        EmbeddingError : a part has an object that no file of a state can have; names both.
        """
        parts = {name: self._saved(name) for name in self._parts} if dense else {}
        return {"parts": parts, "random": random_state()}

    def _saved(self, name: str) -> Any:
        """Return a copy of the state of a part."""
        try:
            return copied(self._parts[name].state_dict())
        except EmbeddingError as error:
            raise EmbeddingError(f"{name} {error}") from error

    def restore_parts(self, state: Mapping[str, Any]) -> None:
        """Take over model, optimizers and objects: all of them, or none.

        Raises
        ------
        EmbeddingError : they are others than those that were saved.
        """
        saved: Mapping[str, Any] = state["parts"]
        if set(saved) != set(self._parts):
            raise EmbeddingError(
                f"the commit has {', '.join(sorted(saved))}, the script "
                f"{', '.join(sorted(self._parts))}: give fit the same optimizers and state"
            )
        before = {name: copied(part.state_dict()) for name, part in self._parts.items()}
        loaded: list[str] = []
        for name, part in self._parts.items():
            loaded.append(name)
            try:
                part.load_state_dict(saved[name])
            except Exception as error:  # of any kind: an object can be the user's own
                for changed in loaded:  # a model may have taken a part of its state
                    self._parts[changed].load_state_dict(before[changed])
                raise EmbeddingError(f"{name} is not that of the commit: {error}") from error


def copied(value: Any) -> Any:
    """Return a copy of a state: tensors on the CPU, numbers of NumPy as Python's, nothing shared.

    Raises
    ------
    EmbeddingError : it has an object that `state_from_bytes` would refuse.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {copied(key): copied(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(part) for part in value)
    plain = value.item() if isinstance(value, np.generic) else value
    if type(plain) not in _PLAIN:
        _check_readable(plain)
    return copy.deepcopy(plain)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)


def _check_readable(part: object) -> None:
    """Raise EmbeddingError unless `torch.load` reads an object in a file of a state again.

    It refuses those whose reading could run code, a commit later than they were written.
    """
    try:
        torch.load(io.BytesIO(state_to_bytes({"part": part})), weights_only=True)
    except Exception as error:  # of torch and pickle, of many kinds
        raise EmbeddingError(
            f"has a {type(part).__name__} in its state_dict(), and a job that began from a commit "
            "could not read it: needs tensors, numbers, texts, and lists and dicts of these"
        ) from error


def random_state() -> dict[str, Any]:
    """Return the states of the generators of random numbers that training uses."""
    generator: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, gauss = generator
    version, numbers, following = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "python": [version, list(numbers), following],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the states of generators that `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():  # a host may have fewer than that of the commit
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    version, numbers, following = state["python"]
    random.setstate((version, tuple(numbers), following))


def state_to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return a state as a file has it."""
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()


def state_from_bytes(content: bytes, source: str) -> dict[str, Any]:
    """Return the state that a file has.

    Raises
    ------
    EmbeddingError : it is none; begins with `source`.
    """
    try:
        state: Any = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # torch's own, of many kinds
        raise EmbeddingError(f"{source}: is no state of a trainer: {error}") from error
    if not isinstance(state, dict) or not {"parts", "random"} <= set(state):
        raise EmbeddingError(f"{source}: is no state of a trainer")
    return state
