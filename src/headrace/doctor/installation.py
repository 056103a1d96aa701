"""Checks of what is installed: headrace itself, its native module, and the packages it imports."""

import csv
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import headrace
from headrace.doctor.finding import CheckFinding
from headrace.doctor.probing import probe
from headrace.extras import Dependency, dependency

_REINSTALL = "pip install --force-reinstall --no-deps headrace, or make native in a checkout"

_WITH_TLS = "built with OpenSSL"

_IMPORT = """
import importlib, json, sys
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
        problem = ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    print(json.dumps({"module": module, "problem": problem}), flush=True)
"""

_NATIVE = """
import json, headrace._native
print(json.dumps({"tls": headrace._native.has_tls()}))
"""

_ENCRYPTED_GROUP = """
import json, threading
from headrace.executor import Executor
ranks = [
    Executor(rank, 2, secret="of a trial", shared_memory=False, tls=True) for rank in range(2)
]
addresses = [executor.address for executor in ranks]
problems = []
def connect(executor):
    try:
        executor.connect(addresses, 10.0)
    except Exception as error:
        problems.append(str(error))
threads = [threading.Thread(target=connect, args=(executor,)) for executor in ranks]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"problem": problems[0] if problems else ""}))
"""


def check_installation() -> CheckFinding:
    """Check that headrace is installed once, and that all files of it are on disk."""
    folder = Path(headrace.__file__).parent
    # by their real folder: some systems search lib64, too, which is a link to lib
    installed = list(
        {
            (Path(str(distribution.locate_file(""))).resolve(), version): distribution
            for distribution in metadata.distributions(name="headrace")
            if (version := _version_of(distribution))
        }.values()
    )
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
    files = _files_of(installed[0])
    absent = [file for file in files if not file.exists()]
    if absent:
        return CheckFinding.missing(
            name,
            f"{text}: {len(absent)} of {len(files)} files are absent, such as {absent[0]}",
            remedy=_REINSTALL,
        )
    return CheckFinding.ok(name, text)


def check_native(*, connects: bool = False) -> tuple[CheckFinding, CheckFinding]:
    """Check that the native module can be imported, and whether it has TLS.

    Parameters
    ----------
    connects : whether two ranks try to connect by TLS.
    """
    result = probe(_NATIVE)
    if result.problem or not result.answers:
        problem = result.problem.removeprefix("ImportError: ")
        missing = CheckFinding.missing("native", problem, remedy=_REINSTALL)
        without = CheckFinding.missing("tls", "no native module")
        return missing, without
    native = CheckFinding.ok("native", "the native module can be imported")
    if result.answers[-1]["tls"]:
        return native, _check_encryption() if connects else CheckFinding.ok("tls", _WITH_TLS)
    tls = CheckFinding.missing(
        "tls",
        "this build of the native module has none",
        remedy="apt-get install libssl-dev, then build headrace again",
    )
    return native, tls


def _check_encryption() -> CheckFinding:
    """Check that two ranks connect by TLS; there are no certificates that could expire."""
    result = probe(_ENCRYPTED_GROUP, deadline_s=60.0)
    if not result.answers and "ModuleNotFoundError" in result.problem:
        return CheckFinding.ok("tls", _WITH_TLS)  # the package has its own finding
    problem = result.answers[-1]["problem"] if result.answers else result.problem
    if not problem:
        return CheckFinding.ok("tls", f"{_WITH_TLS}; two ranks connect, each time by a new key")
    return CheckFinding.missing(
        "tls",
        f"{_WITH_TLS}, and two ranks cannot connect: {problem}",
        remedy="allow TLS 1.3 with TLS_AES_128_GCM_SHA256 in OpenSSL's configuration "
        "(openssl version -d, OPENSSL_CONF)",
    )


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
        version = _version_of(metadata.distribution(package.name))
    except metadata.PackageNotFoundError:
        version = ""
    if not version:
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


def _version_of(distribution: metadata.Distribution) -> str:
    """Return a distribution's version; empty for a folder that an interrupted installation left."""
    headers = distribution.metadata
    # not `distribution.version`: from Python 3.12 on it warns, and later fails, if there is none
    return headers["Version"] if "Version" in headers else ""  # noqa: SIM401 - its type has no `get`


def _files_of(distribution: metadata.Distribution) -> list[Path]:
    """Return the files that were installed, but compiled ones, whether they are on disk or not."""
    # not `distribution.files`, which leaves out what is absent from Python 3.12 on
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    paths = [Path(str(distribution.locate_file(row[0]))) for row in rows if row]
    return [path for path in paths if path.suffix != ".pyc"]
