"""The torch backend's front door: ``import headrace.torch`` makes "headrace" known to torch.

Torch also calls `register` by itself, through the package's entry points, so that
``init_process_group("headrace")`` needs no import. Nothing heavy is loaded before a process
group is made.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

NAME = "headrace"


def register() -> None:
    """Register the backend "headrace" for CPU tensors; doing it twice is harmless."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def step() -> None:
    """Say that a training step ends here; for loops whose calls do not show it by themselves.

    Steps are otherwise found in the sequence of collectives. Once said, this is what counts.
    """
    from headrace.collectives.run.create import mark_step

    mark_step()


@contextmanager
def background() -> Generator[None]:
    """Let the collectives that this thread begins inside yield to all others.

    Their bytes move when no others can. All ranks have to do so with the same calls.
    """
    from headrace.collectives.run.caller import in_background

    token = in_background.set(True)
    try:
        yield
    finally:
        in_background.reset(token)


def _create(options: Any, _backend_options: Any) -> dist.ProcessGroup:
    from headrace.collectives.run.create import create

    return create(options, _follow)


def _follow(store: Any, executor: Any, switch: Any, book: Any, settings: Any) -> Any:
    if book is None:
        return None
    from headrace.collectives.adapt.follow import follow  # only where there is a plan to adapt

    return follow(store, executor, switch, book, settings)


register()
