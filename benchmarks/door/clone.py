"""A clone of the repository: the time from it to the end of the demo, as the README prints it."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, Report
from benchmarks.instruments import first_screen
from headrace.settings import child_environment

FULL_ONLY = True

_PROJECT = ROOT.parent
_REQUIREMENTS = ("runtime", "build")
"""Files of `requirements` that ``make demo`` installs."""
_DOWNLOAD_S = 1800.0
_STAGE = re.compile(r"==> ([^\x1b]*)")
"""Heading of a stage in the output of make, before an escape sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a command by its heading, and its seconds."""

    name: str
    seconds: float


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"readme-to-demo-s": "<=600"}


def measure(report: Report, *, quick: bool) -> None:
    """Clone the last commit, and run the demo with all packages at hand and no compiler cache."""
    del quick
    commands = [step.text for step in first_screen.demo_steps(first_screen.README.read_text())]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone, downloads = folder / "clone", folder / "downloads"
        subprocess.run(["git", "clone", "--quiet", str(_PROJECT), str(clone)], check=True)
        files = [clone / "requirements" / f"{kind}.txt" for kind in _REQUIREMENTS]
        _download(files, downloads)
        environment = child_environment(
            {
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(downloads),
                "PYTHONPATH": None,
                "VIRTUAL_ENV": None,
                "CCACHE_DISABLE": "1",
                # the first Python on the path is not this environment's
                "PATH": _path_without(Path(sys.prefix)),
            }
        )
        stages = list(run_stages(commands, clone, environment))
    for stage in stages:
        report.row("from a clone to the demo's end", stage=stage.name, seconds=stage.seconds)
    report.bar("readme-to-demo-s", sum(stage.seconds for stage in stages))


def _download(requirements: Sequence[Path], folder: Path) -> None:
    """Fetch packages, so that installing them needs no network."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    for file in requirements:
        command += ["--requirement", str(file)]
    subprocess.run(command, check=True, timeout=_DOWNLOAD_S)


def _path_without(prefix: Path) -> str:
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(place for place in places if not Path(place).is_relative_to(prefix))


def run_stages(
    commands: Sequence[str], folder: Path, environment: dict[str, str]
) -> Iterator[Stage]:
    """Run commands in a folder, and yield their stages.

    Raises
    ------
    subprocess.CalledProcessError : one failed.
    """
    for command in commands:
        began = time.perf_counter()
        name, lines = command, list[str]()
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if heading := _STAGE.search(line):
                    now = time.perf_counter()
                    yield Stage(name=name, seconds=now - began)
                    name, began = heading[1].strip(), now
        yield Stage(name=name, seconds=time.perf_counter() - began)
        if process.returncode:
            raise subprocess.CalledProcessError(
                process.returncode, command, output="".join(lines[-20:])
            )
