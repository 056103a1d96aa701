"""Packages of one benchmark alone, in folders of their own."""

import subprocess
import sys
from pathlib import Path

from benchmarks.harness import ROOT

_INSTALL_S = 600.0


def installed(claim: str, name: str) -> Path:
    """Return the folder of `requirements/bench-CLAIM-NAME.txt`, installed first if it is not.

    Raises
    ------
    subprocess.CalledProcessError, subprocess.TimeoutExpired : pip failed.
    """
    folder = ROOT.parent / "build" / name
    requirements = ROOT.parent / "requirements" / f"bench-{claim}-{name}.txt"
    complete = folder / "complete.txt"
    if not complete.exists() or complete.read_text() != requirements.read_text():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
        command += ["--upgrade", "--target", str(folder), "--requirement", str(requirements)]
        subprocess.run(command, check=True, timeout=_INSTALL_S)
        complete.write_text(requirements.read_text())
    return folder
