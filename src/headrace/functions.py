"""Functions that a user names as ``module:function``."""

import importlib
import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import InputError


@contextmanager
def folder_on_path() -> Generator[None]:
    """Find modules of the working folder first, as ``python -m`` does."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def named_function(
    text: str, error: type[InputError] = InputError, arguments: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Return the function that ``module:function`` names.

    Parameters
    ----------
    error : raised if there is none, or if it takes others than `arguments`.
    arguments : what it will be called with, such as ``a batch size``.
    """
    module, colon, name = text.partition(":")
    is_file = module.endswith(".py")
    names_both = colon and name and not module.startswith(".") and not is_file
    try:
        function: Any = getattr(importlib.import_module(module), name) if names_both else None
    except (ImportError, AttributeError, SyntaxError, ValueError) as problem:
        raise error(
            f"model is {text!r}, needs module:function of a module that can be imported from here: "
            f"{problem}"
        ) from problem
    if not callable(function):
        example = f", such as {Path(module).stem}:{name or 'build'}" if is_file else ""
        raise error(f"model is {text!r}, needs module:function{example}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as problem:
        inputs = " and ".join(arguments) or "no argument"
        raise error(
            f"{text} is called with {inputs}, needs a function of that: {problem}"
        ) from None
    except ValueError:  # a builtin that has no signature
        pass
    return function
