"""Models whose attention is compressed at the moment.

A model's attention is one setting of its configuration: two threads cannot each have their own.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from headrace.attention.errors import AttentionError
from headrace.forks import ThreadLock

NewCache = Callable[[], Any]
"""Makes the cache of a call that begins without one."""


@dataclass(slots=True, kw_only=True, eq=False)
class Contexts:
    """Contexts of one model, in one thread; they may end in any order, as those of generators do.

    Attributes
    ----------
    newest : cache of the newest context.
    caches : of every context, the newest last.
    settings : of the model, which end with the last context.
    """

    thread: int
    newest: NewCache
    caches: list[NewCache] = field(default_factory=list)
    settings: ExitStack = field(default_factory=ExitStack)

    def new_cache(self) -> Any:
        """Return a cache by the newest context, or by the last one: for a copy of the model."""
        return self.newest()


_entered: dict[int, Contexts] = {}
"""By the model's identity."""
_lock = ThreadLock()


@contextmanager
def compressing(model: nn.Module, new_cache: NewCache) -> Generator[Contexts]:
    """Count a model as compressed meanwhile.

    Raises
    ------
    AttentionError : another thread has a context of the same model.
    """
    thread = threading.get_ident()
    with _lock:
        contexts = _entered.setdefault(id(model), Contexts(thread=thread, newest=new_cache))
        if contexts.thread != thread:
            raise AttentionError(
                f"another thread compresses this {type(model).__name__} already: enter the context "
                "once, around the threads, or give each thread a model of its own"
            )
        contexts.caches.append(new_cache)
        contexts.newest = new_cache
    try:
        yield contexts
    finally:
        contexts.caches.remove(new_cache)
        if contexts.caches:
            contexts.newest = contexts.caches[-1]
        else:
            contexts.settings.close()
            with _lock:
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
