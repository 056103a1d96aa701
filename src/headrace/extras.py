"""Packages that headrace depends on: the versions that serve, and the command for a missing one.

Those of an extra serve some commands only: a job, a plan or a proof does not need them.
"""

import importlib
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from headrace.errors import InputError

_MODULES = {"scikit-learn": "sklearn"}
"""Modules to import, of distributions that are not named alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A distribution that headrace needs.

    Attributes
    ----------
    name : of the distribution, as pyproject.toml has it.
    versions : bounds such as ``>=2.14,<3``; empty for any.
    extra : of pyproject.toml; empty for what is always installed.
    """

    name: str
    versions: str = ""
    extra: str = ""

    @property
    def module(self) -> str:
        """The module that it is imported as."""
        return _MODULES.get(self.name, self.name.replace("-", "_"))

    @property
    def requirement(self) -> str:
        """Name and bounds, as pip takes them."""
        return f"{self.name}{self.versions}"

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install '{f'headrace[{self.extra}]' if self.extra else self.requirement}'"

    def allows(self, version: str) -> bool:
        """Return whether a version keeps the bounds; parts after the release do not count.

        By the standard library alone: the doctor asks in installations that may lack `packaging`.
        """
        for bound in filter(None, self.versions.split(",")):
            operator, limit = re.fullmatch(r"(\W+)(.*)", bound.strip()).groups()  # pyright: ignore[reportOptionalMemberAccess]
            difference = _compare(_release(version), _release(limit))
            if (operator == ">=" and difference < 0) or (operator == "<" and difference >= 0):
                return False
        return True


def _release(version: str) -> list[int]:
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []


def _compare(first: list[int], second: list[int]) -> int:
    length = max(len(first), len(second))
    padded = [release + [0] * (length - len(release)) for release in (first, second)]
    return (padded[0] > padded[1]) - (padded[0] < padded[1])


@cache
def dependencies() -> dict[str, Dependency]:
    """Return headrace's dependencies by name, of extras too; none where it is not installed.

    One that is always installed counts as such, even if an extra names it, too.
    """
    try:
        lines = metadata.requires("headrace") or []
    except metadata.PackageNotFoundError:
        return {}
    named: dict[str, Dependency] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        name, versions = re.fullmatch(r"([\w.-]+)(?:\[.*\])?(.*)", requirement.strip()).groups()  # pyright: ignore[reportOptionalMemberAccess]
        extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
        dependency = Dependency(name=name, versions=versions, extra=extra[1] if extra else "")
        if name != "headrace" and (name not in named or not dependency.extra):
            named[name] = dependency
    return named


def dependency(name: str) -> Dependency:
    """Return the dependency of a name; one of any version if the installation does not list it."""
    return dependencies().get(name, Dependency(name=name))


def missing_dependency(error: ImportError) -> Dependency | None:
    """Return the dependency that an import did not find; None if the error is another one."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    by_module = {listed.module: listed for listed in dependencies().values()}
    return by_module.get(module)


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


def require_metrics(name: str) -> None:
    """Check that the class of this name, which serves metrics, can be imported; see `require`."""
    require("prometheus_client", "metrics", name)


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; it is not."""
    return importlib.util.find_spec(package) is not None
