"""Misuse of the native module raises: six of 66 ways used to end the interpreter."""

import subprocess
import sys
from pathlib import Path

from tests.conformance.launch import environment
from tests.waiting import JOB_S

JOB = Path(__file__).with_name("misuse_job.py")


def test_every_misuse_raises() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(JOB)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, "\n".join(lines[-30:])
    assert lines[-1] == f"{len(lines) - 1} ways tried"
    assert not [line for line in lines if line.endswith("raised nothing")]
