"""Registration of the backend with torch.

torch calls `register`, through `headrace.torch`, at the end of its own import, which
`headrace.torch` may have begun. So this module imports torch in `register` only.
"""

import atexit
import sys
from typing import Any

from headrace.accelerators import has_gpu

NAME = "headrace"


def register() -> None:
    """Register the backend "headrace"; calling it twice is harmless.

    It is for CPU tensors, and where there is a GPU for CUDA tensors, too: torch's layers above put
    the tensors of CPU programs on the GPU of a backend that is registered for both.
    """
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        from headrace.collectives.run.torch.untraced import untraced

        create = untraced(_create)
        devices = ["cpu", "cuda"] if has_gpu() else ["cpu"]
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=devices)


@atexit.register
def _close_groups() -> None:
    """Close groups that the script left open: no thread may outlive the interpreter.

    What a script registers later runs earlier, and may still make calls.
    """
    create = sys.modules.get("headrace.collectives.run.torch.create")
    if create is not None:
        create.close_all()


def _create(options: Any, _backend_options: Any) -> Any:
    from headrace.collectives.run.torch.create import create

    return create(options, _follow)


def _follow(store: Any, executor: Any, switch: Any, book: Any, settings: Any) -> Any:
    if book is None and settings.metrics is None:
        return None
    from headrace.collectives.adapt.session import follow  # large, and not always needed

    return follow(store, executor, switch, book, settings)
