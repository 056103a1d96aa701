"""Models whose attention is compressed at the moment.

A model's attention is one setting of its configuration: two threads cannot each have their own.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

from headrace.attention.errors import AttentionError

_entered: dict[int, tuple[int, int]] = {}
"""Thread, and contexts within one another, by the model's identity."""
_lock = threading.Lock()


@contextmanager
def compressing(model: nn.Module) -> Generator[None]:
    """Count a model as compressed meanwhile.

    Raises
    ------
    AttentionError : another thread has a context of the same model.
    """
    thread = threading.get_ident()
    with _lock:
        owner, depth = _entered.get(id(model), (thread, 0))
        if owner != thread:
            raise AttentionError(
                f"another thread compresses this {type(model).__name__} already: enter the context "
                "once, around the threads, or give each thread a model of its own"
            )
        _entered[id(model)] = (thread, depth + 1)
    try:
        yield
    finally:
        with _lock:
            if depth:
                _entered[id(model)] = (thread, depth)
            else:
                del _entered[id(model)]


def check_compressing() -> None:
    """Refuse a compressed cache where no model is compressed: it hands on new keys alone.

    Raises
    ------
    AttentionError
    """
    if not _entered:
        raise AttentionError(
            "a compressed cache is read within headrace.attention.compress(model, plan) alone: "
            "call the model there"
        )
