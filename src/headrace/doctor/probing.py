"""Probes: short programs in a Python of their own, which may fail, crash or hang."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from headrace.launch.process import signal_name

DEADLINE_S = 120.0
"""Of a probe: several times what importing torch takes on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The end of a probe.

    Attributes
    ----------
    answers : the lines of JSON that it printed, those before a crash too.
    problem : why it ended early, in a line; empty if it did not.
    """

    answers: tuple[Any, ...]
    problem: str = ""


def probe(program: str, *arguments: str, deadline_s: float = DEADLINE_S) -> ProbeResult:
    """Run a program in a new Python like this one, without writing files.

    Parameters
    ----------
    program : Python code that prints lines of JSON.
    arguments : its ``sys.argv[1:]``.
    deadline_s : seconds after which it is killed.
    """
    # -P: a file torch.py in the current folder is not torch
    command = [sys.executable, "-B", "-P", "-c", program, *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        text = printed if isinstance(printed, str) else printed.decode(errors="backslashreplace")
        return ProbeResult(answers=_answers(text), problem=f"did not end within {deadline_s:g} s")
    except OSError as error:
        return ProbeResult(
            answers=(), problem=f"{sys.executable} cannot be started: {error.strerror}"
        )
    return ProbeResult(
        answers=_answers(done.stdout), problem=_problem(done.returncode, done.stderr)
    )


def _answers(printed: str) -> tuple[Any, ...]:
    answers: list[Any] = []
    for line in printed.splitlines():
        if line.startswith("{"):  # imported packages may print, too
            try:
                answers.append(json.loads(line))
            except ValueError:
                continue
    return tuple(answers)


def _problem(code: int, errors: str) -> str:
    if code < 0:
        return f"was ended by {signal_name(-code)}"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit code {code}") if code else ""
