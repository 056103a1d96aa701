"""The README's first screen and its results in a minute, executed as they are printed.

Commands of blocks of ``console`` run in a shell, and blocks of ``python`` in a file of their own,
one after another in one folder, to the end of the part `LAST_PART`.
"""

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT
from headrace.settings import child_environment

README = ROOT.parent / "README.md"
LAST_PART = "A result in a minute"
DEMO = "The demo\n"
INSTALLATION = "pip install "
_DEADLINE_S = 300.0
_CONFINED = Path(__file__).with_name("confined.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command as the README prints it, or the code of a block of Python.

    Attributes
    ----------
    text : the command with its comment, or the code.
    is_code : whether it is code.
    """

    text: str
    is_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A step's outcome.

    Attributes
    ----------
    step : the step.
    seconds : from start to exit.
    problem : the end of its output, if it failed or warned; empty if it did neither.
    """

    step: Step
    seconds: float
    problem: str


def steps(text: str) -> list[Step]:
    """Return the steps of the first screen, which has no heading, and of `LAST_PART`.

    Raises
    ------
    ValueError : if the README has no such part after its first screen.
    """
    first, *parts = _parts(text)
    if not parts or not parts[0].startswith(LAST_PART):
        raise ValueError(f"README.md: the part after the first screen is not '{LAST_PART}'")
    return _steps_in(first + parts[0])


def demo_steps(text: str) -> list[Step]:
    """Return the steps of the part `DEMO`.

    Raises
    ------
    ValueError : if the README has no such part.
    """
    for part in _parts(text):
        if part.startswith(DEMO):
            return _steps_in(part)
    raise ValueError(f"README.md has no part '{DEMO}'")


def _parts(text: str) -> list[str]:
    return re.split(r"^## ", text, flags=re.MULTILINE)


def _steps_in(part: str) -> list[Step]:
    blocks = re.findall(r"^```(console|python)\n(.*?)^```$", part, re.M | re.S)
    return [
        step
        for kind, block in blocks
        for step in (
            [Step(text=block, is_code=True)]
            if kind == "python"
            else [Step(text=line) for line in re.findall(r"^\$ (.*)$", block, re.M)]
        )
    ]


def run_steps(
    printed: Sequence[Step], python: Path, folder: Path, downloads: Path | None = None
) -> list[Outcome]:
    """Run steps in a folder, without the rights of root, with the commands beside an interpreter.

    Parameters
    ----------
    downloads : where pip finds what a wheel depends on, so that it needs no network.
    """
    environment = child_environment(
        {
            "PATH": str(python.parent),  # no compiler
            "HOME": str(folder),
            "PYTHONPATH": None,
            "HEADRACE_CACHE": None,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": None if downloads is None else str(downloads),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "COLUMNS": "200",
        }
    )
    return [_run(step, python, folder, environment) for step in printed]


def _run(step: Step, python: Path, folder: Path, environment: dict[str, str]) -> Outcome:
    command = ["/bin/sh", "-c", step.text]
    if step.is_code:
        code = folder / "block.py"
        code.write_text(step.text)
        command = [str(python), str(code)]
    began = time.perf_counter()
    done = subprocess.run(
        [str(python), str(_CONFINED), "no-root", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    printed = done.stdout + done.stderr
    failed = done.returncode != 0 or "warning:" in printed.lower()
    return Outcome(
        step=step,
        seconds=time.perf_counter() - began,
        problem=f"exit code {done.returncode}: {printed[-500:]}" if failed else "",
    )
