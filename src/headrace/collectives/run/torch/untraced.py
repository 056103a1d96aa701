"""Exclusion of code from torch.compile, which runs it eagerly instead of tracing it.

Dynamo cannot trace a process group written in Python: it takes groups for opaque objects with the
members of torch's own class only. After a graph break, however, it compiles every Python function
that is then called, methods of groups and works included.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

_T = TypeVar("_T", bound=Callable[..., Any])

_SKIP = eval_frame._FrameExecStrategy(  # pyright: ignore[reportPrivateUsage]
    eval_frame._FrameAction.SKIP,  # pyright: ignore[reportPrivateUsage]
    eval_frame._FrameAction.SKIP,  # pyright: ignore[reportPrivateUsage]
)
"""Strategy for a function and its callees."""

_REASON = "headrace runs it eagerly"


def untraced(target: _T) -> _T:
    """Exclude a function, or all functions of a class, from compilation, at no cost per call.

    It has the effect of ``torch.compiler.disable``, which wraps every call and loads dynamo: a
    frame of the function, or below one, is not compiled, and a call of it in a traced function is
    a graph break.
    """
    entity: Any = target
    for member in vars(entity).values() if isinstance(entity, type) else (entity,):
        function = member.fget if isinstance(member, property) else member
        while isinstance(function, FunctionType):
            eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
            # read by dynamo before it inlines a call in a traced function
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
            function = getattr(function, "__wrapped__", None)
    return target
