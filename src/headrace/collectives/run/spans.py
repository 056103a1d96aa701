"""What torch.profiler shows of headrace's calls: each from its beginning to its end."""
# torch has no public names for these
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.profiler import record_function

_NONE = nullcontext()


def profiling() -> bool:
    """Whether a profiler of torch is running: nothing else of this costs anything without one."""
    return torch.autograd._profiler_enabled()


def span(name: str) -> AbstractContextManager[Any]:
    """Show what is done inside as a call of `name`."""
    return record_function(f"headrace:{name}") if profiling() else _NONE


def span_until(name: str, future: "torch.futures.Future[Any]") -> None:
    """Show a call of `name` from now until `future` is done, whoever waits for it."""
    begun = record_function(f"headrace:{name}")
    begun.__enter__()
    begun._call_end_callbacks_on_future(future)
