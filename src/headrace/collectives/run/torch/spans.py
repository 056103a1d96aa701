"""Spans of headrace's calls in torch.profiler: each from its beginning to its end.

A profiler that stops frees the memory that ending a span writes to. The span of a call that is
still under way is therefore ended just before, by a replacement of the function that stops torch's
profilers.
"""
# torch has no public names for these
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import os
import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import profiler
from torch.profiler import record_function

profiling = torch.autograd._profiler_enabled
"""Return whether a profiler of torch is running in this thread."""

Span = torch.futures.Future[None]
"""Future that is set when a span ends."""

_lock = threading.Lock()
_open: set[Span] = set()


def span(name: str) -> AbstractContextManager[Any]:
    """Return a context that is shown as a call of `name`."""
    return record_function(f"headrace:{name}")


def open_span(name: str) -> Span:
    """Show a call of `name` from now until `close_span`."""
    begun, end = record_function(f"headrace:{name}"), Span()
    with _lock:
        begun.__enter__()
        begun._call_end_callbacks_on_future(end)
        _open.add(end)
    return end


def close_span(end: Span) -> None:
    """End a span, in any thread, unless the profiler has stopped."""
    with _lock:
        if end in _open:
            _open.discard(end)
            end.set_result(None)


_stop = profiler._disable_profiler


def _close_all_and_stop() -> Any:
    with _lock:
        for end in _open:
            end.set_result(None)
        _open.clear()
        return _stop()


profiler._disable_profiler = _close_all_and_stop


def _after_fork() -> None:
    """Forget the parent's spans in a child: its threads end them, and one may hold the lock."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
