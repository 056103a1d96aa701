"""Garbage collection paused while exports are written and read.

They are millions of small objects, none of them in a cycle; the collector would traverse all of
them again and again, which takes a third of the time.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause the cyclic garbage collector, unless it is off already."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
