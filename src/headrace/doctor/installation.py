"""Checks of what is installed: headrace itself, its native module, and the packages it imports."""

from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import headrace
from headrace.doctor.finding import CheckFinding
from headrace.doctor.probing import probe
from headrace.extras import Dependency, dependency

_REINSTALL = "pip install --force-reinstall --no-deps headrace, or make native in a checkout"

_IMPORT = """
import importlib, json, sys
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
        problem = ""
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    print(json.dumps({"module": module, "problem": problem}), flush=True)
"""

_NATIVE = """
import json, headrace._native
print(json.dumps({"tls": headrace._native.has_tls()}))
"""


def check_installation() -> CheckFinding:
    """Check that headrace is installed once, and that all files of it are on disk."""
    folder = Path(headrace.__file__).parent
    installed = [
        distribution
        for distribution in metadata.distributions(name="headrace")
        if distribution.version  # a folder without metadata has none
    ]
    name, text = "installation", f"headrace {headrace.__version__} in {folder}"
    if not installed:
        remedy = "pip install ., in a checkout: the command and the torch backend come with it"
        return CheckFinding.limited(name, f"{text}, not installed", remedy=remedy)
    if len(installed) > 1 or installed[0].version != headrace.__version__:
        versions = " and ".join(distribution.version for distribution in installed)
        return CheckFinding.limited(
            name,
            f"{text}, beside metadata of {versions}",
            remedy="pip uninstall headrace until none is left, then install it again",
        )
    files = [Path(str(file.locate())) for file in installed[0].files or () if file.suffix != ".pyc"]
    absent = [file for file in files if not file.exists()]
    if absent:
        return CheckFinding.missing(
            name,
            f"{text}: {len(absent)} of {len(files)} files are absent, such as {absent[0]}",
            remedy=_REINSTALL,
        )
    return CheckFinding.ok(name, text)


def check_native() -> tuple[CheckFinding, CheckFinding]:
    """Check that the native module can be imported, and whether it has TLS."""
    result = probe(_NATIVE)
    if result.problem or not result.answers:
        problem = result.problem.removeprefix("ImportError: ")
        missing = CheckFinding.missing("native", problem, remedy=_REINSTALL)
        without = CheckFinding.missing("tls", "no native module")
        return missing, without
    native = CheckFinding.ok("native", "the native module can be imported")
    if result.answers[-1]["tls"]:
        return native, CheckFinding.ok("tls", "built with OpenSSL")
    tls = CheckFinding.missing(
        "tls",
        "this build of the native module has none",
        remedy="apt-get install libssl-dev, then build headrace again",
    )
    return native, tls


def import_problems(names: Iterable[str]) -> dict[str, str]:
    """Return why distributions' modules cannot be imported, by name; empty where they can.

    One that crashes the process does not hide the others.
    """
    remaining = [dependency(name) for name in names]
    problems: dict[str, str] = {}
    while remaining:
        result = probe(_IMPORT, *(package.module for package in remaining))
        answers = {answer["module"]: answer["problem"] for answer in result.answers}
        for package in remaining:
            if package.module in answers:
                problems[package.name] = answers[package.module]
        remaining = [package for package in remaining if package.module not in answers]
        if remaining:
            problems[remaining.pop(0).name] = f"the import {result.problem or 'printed nothing'}"
    return problems


def check_package(name: str, problems: Mapping[str, str]) -> CheckFinding:
    """Check a distribution: it is installed, in a version that serves, and can be imported.

    Parameters
    ----------
    problems : of imports, by name.
    """
    package = dependency(name)
    if (finding := check_version(package)) is not None:
        return finding
    version = metadata.version(name)
    if problem := problems.get(name):
        return CheckFinding.missing(
            name,
            f"{version} is installed, and cannot be imported: {problem}",
            remedy=f"pip install --force-reinstall '{package.requirement}'",
        )
    return CheckFinding.ok(name, version)


def check_version(package: Dependency) -> CheckFinding | None:
    """Return the finding on a distribution that is not installed, or not in a version that serves.

    None if it is.
    """
    try:
        version = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        text, remedy = "not installed", package.command
        if find_spec(package.module) is not None:
            text = "its modules are on disk, its metadata are not"
            remedy = f"pip install --force-reinstall '{package.requirement}'"
        return CheckFinding.missing(package.name, text, remedy=remedy)
    if package.allows(version):
        return None
    return CheckFinding.missing(
        package.name,
        f"{version} is installed, needs {package.versions}",
        remedy=f"pip install '{package.requirement}'",
    )
