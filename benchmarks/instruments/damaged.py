"""Damaged installations and machines, and the diagnosis that ``headrace doctor`` owes each.

An installation is a virtual environment whose packages are links to those of this one, so that one
can be left out, replaced or broken; what a process lacks is taken away by `confined`.
"""

import importlib.util
import json
import re
import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import headrace
from benchmarks.instruments.linked import link_distributions
from headrace.settings import child_environment

_SOURCE = Path(headrace.__file__).parent
_CONFINED = Path(__file__).with_name("confined.py")
DEADLINE_S = 300.0

Environment = dict[str, str]


def _unharmed(_site: Path, _environment: Environment) -> None:
    """Leave the installation and the environment as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damage, and the diagnosis that it needs.

    Attributes
    ----------
    name : of the damage.
    asked : words after ``headrace doctor``.
    findings : by name: the status, and patterns of the text and the remedy.
    ready : whether what was asked can run all the same.
    packages : distributions that are installed, besides those of every installation.
    absent : distributions that every installation has, and this one has not.
    inflict : changes the installation (its site-packages, its home) or the environment.
    confinement : of `confined`.
    """

    name: str
    asked: tuple[str, ...]
    findings: dict[str, tuple[str, str, str]]
    ready: bool
    packages: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    inflict: Callable[[Path, Environment], object] = _unharmed
    confinement: str = "none"


_EVERYWHERE = ("nanobind-backend", "numpy", "pyarrow", "rich", "typer")
_INDEX = ("index", "run")
_HOOK = ("compression", "run")


def _no_native(site: Path, _environment: Environment) -> None:
    built = importlib.util.find_spec("headrace._native")
    assert built is not None
    assert built.origin is not None
    (site / "headrace" / Path(built.origin).name).unlink()


def _pretend(site: Path, name: str, version: str, code: str, entry_points: str = "") -> None:
    """Write a distribution of one package."""
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(entry_points)


def _old_torch(site: Path, _environment: Environment) -> None:
    _pretend(site, "torch", "1.13.1", "")


def _crashing_torch(site: Path, _environment: Environment) -> None:
    _pretend(site, "torch", "2.15.0", "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")


def _leftover(site: Path, _environment: Environment) -> None:
    entry_points = "[torch.backends]\nold = gone_backend:register\n"
    _pretend(site, "old_backend", "0.3", "", entry_points)


def _no_compiler(site: Path, environment: Environment) -> None:
    environment["PATH"] = str(site)


def _wrong_setting(_site: Path, environment: Environment) -> None:
    environment["HEADRACE_DEADLINE_S"] = "soon"


HEALTHY = Damage(name="healthy", asked=_INDEX, findings={}, ready=True)

DAMAGES = (
    Damage(
        name="no torch",
        asked=_HOOK,
        findings={"torch": ("missing", "not installed", r"pip install '.*torch.*'")},
        ready=False,
    ),
    Damage(
        name="wrong torch",
        asked=_HOOK,
        findings={"torch": ("missing", r"1\.13\.1 .* needs .*>=2\.14", r"pip install 'torch.*>=")},
        ready=False,
        inflict=_old_torch,
    ),
    Damage(
        name="torch that crashes",
        asked=_HOOK,
        findings={"torch": ("missing", "cannot be imported: .*SIGILL", "--force-reinstall 'torch")},
        ready=False,
        inflict=_crashing_torch,
    ),
    Damage(
        name="leftover entry point",
        asked=_HOOK,
        findings={
            "torch-backends": ("missing", "gone_backend of old_backend", "pip uninstall old"),
            "torch": ("missing", "cannot be imported", "pip uninstall old_backend"),
        },
        ready=False,
        packages=(
            "torch",
            "typing_extensions",
            "sympy",
            "networkx",
            "filelock",
            "fsspec",
            "jinja2",
            "mpmath",
            "markupsafe",
        ),
        inflict=_leftover,
    ),
    Damage(
        name="half-installed package",
        asked=_INDEX,
        findings={
            "native": ("missing", "not built for Python", "make native"),
            "installation": ("missing", "1 of .* files are absent", "--force-reinstall"),
            "tls": ("missing", "no native module", ""),
        },
        ready=False,
        inflict=_no_native,
    ),
    Damage(
        name="no NumPy",
        asked=_INDEX,
        findings={"numpy": ("missing", "not installed", r"pip install 'numpy.*>=2")},
        ready=False,
        absent=("numpy", "pyarrow"),
    ),
    Damage(
        name="no command line",
        asked=_INDEX,
        findings={
            "typer": ("missing", "not installed", "pip install 'typer"),
            "rich": ("missing", "not installed", "pip install 'rich"),
        },
        ready=False,
        absent=("typer", "rich"),
    ),
    Damage(
        name="no compiler",
        asked=_INDEX,
        findings={"compiler": ("missing", r"g\+\+.* is in PATH", r"install g\+\+")},
        ready=True,
        inflict=_no_compiler,
    ),
    Damage(
        name="no namespaces",
        asked=("testbed",),
        findings={"namespaces": ("missing", "CAP_SYS_ADMIN|CAP_NET_ADMIN|iproute2", "root|apt")},
        ready=True,
        confinement="no-namespaces",
    ),
    Damage(
        name="64 open files",
        asked=_INDEX,
        findings={"open-files": ("limited", "at most 64: .* groups of 32 ranks", "ulimit -n 1024")},
        ready=True,
        confinement="few-files",
    ),
    Damage(
        name="read-only home",
        asked=_INDEX,
        findings={"cache": ("limited", "cannot be written: later jobs", "HEADRACE_CACHE=")},
        ready=True,
        confinement="read-only-home",
    ),
    Damage(
        name="ptrace forbidden",
        asked=_INDEX,
        findings={"ptrace": ("limited", "Operation not permitted.*does without", "SYS_PTRACE")},
        ready=True,
        confinement="no-ptrace",
    ),
    Damage(
        name="loopback down",
        asked=("testbed",),
        findings={"network": ("missing", r"127\.0\.0\.1 cannot be reached", "ip link set lo up")},
        ready=False,
        confinement="no-loopback",
    ),
    Damage(
        name="wrong setting",
        asked=_INDEX,
        findings={"settings": ("missing", "HEADRACE_DEADLINE_S is 'soon'", "unset")},
        ready=False,
        inflict=_wrong_setting,
    ),
)


def diagnose(damage: Damage, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Return exit code, JSON and errors of the doctor in a damaged environment made in `folder`."""
    environment_folder = folder / "environment"
    venv.create(environment_folder, symlinks=True, with_pip=False)
    (site,) = environment_folder.glob("lib/python*/site-packages")
    home = folder / "home"
    home.mkdir()
    _install(site, {*_EVERYWHERE, *damage.packages}.difference(damage.absent))
    environment = child_environment({"HOME": str(home), "HEADRACE_CACHE": None, "PYTHONPATH": None})
    damage.inflict(site, environment)
    python = str(environment_folder / "bin" / "python")
    done = subprocess.run(
        [python, str(_CONFINED), damage.confinement, python]
        + ["-B", "-m", "headrace", "doctor", *damage.asked, "--json"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    try:
        return done.returncode, json.loads(done.stdout)["result"], done.stderr
    except ValueError:
        return done.returncode, {}, done.stderr


def mistakes(damage: Damage, code: int, diagnosis: dict[str, Any], healthy: set[str]) -> list[str]:
    """Return where a diagnosis is not the one that a damage needs.

    Parameters
    ----------
    healthy : names of checks that are not ok on this machine without the damage.
    """
    by_name = {finding["name"]: finding for finding in diagnosis.get("findings", ())}
    problems = [] if code == (0 if damage.ready else 1) else [f"exit code {code}"]
    for name, (status, text, remedy) in damage.findings.items():
        finding = by_name.get(name, {"status": "absent", "text": "", "remedy": ""})
        if finding["status"] != status:
            problems.append(f"{name} is {finding['status']}, needs {status}")
        if not re.search(text, finding["text"]):
            problems.append(f"{name}: the text is {finding['text']!r}, needs {text!r}")
        if not re.search(remedy, finding["remedy"]):
            problems.append(f"{name}: the remedy is {finding['remedy']!r}, needs {remedy!r}")
    problems += [
        f"{name} is {finding['status']}: {finding['text']}"
        for name, finding in by_name.items()
        if finding["status"] != "ok" and name not in damage.findings and name not in healthy
    ]
    return problems


def _install(site: Path, names: set[str]) -> None:
    """Link the packages of distributions, and headrace."""
    link_distributions(site, names)
    package = site / "headrace"
    package.mkdir()
    for entry in _SOURCE.iterdir():
        (package / entry.name).symlink_to(entry)
    information = site / f"headrace-{headrace.__version__}.dist-info"
    information.mkdir()
    source = metadata.distribution("headrace")
    for name in ("METADATA", "entry_points.txt"):
        (information / name).write_text(source.read_text(name) or "")
    files = [entry for entry in sorted(package.rglob("*")) if entry.is_file()]
    record = "".join(f"{entry.relative_to(site)},,\n" for entry in files)
    (information / "RECORD").write_text(record)
