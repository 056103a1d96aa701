"""Optional dependencies: packages that a job, a plan or a proof does not need."""

import importlib

from headrace.errors import InputError


def require(package: str, extra: str, purpose: str) -> None:
    """Check that a package of an extra of pyproject.toml can be imported.

    Raises
    ------
    InputError : if it is not installed; names the package, the purpose and the command.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # installed, but one of its own dependencies is not
        raise InputError(
            f"{purpose} needs the package {package}: pip install 'headrace[{extra}]'"
        ) from None
