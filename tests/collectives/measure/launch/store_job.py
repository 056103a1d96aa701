"""A rank that measures by torch's store; rank 0 ends another one in the middle: argv[1], file."""

import os
import signal
import sys
from pathlib import Path

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.launch import measure_torchrun

FOLDER, VICTIM, POINT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
EFFORT = ProbeEffort(budget_s=6, tournament_us=5000, quiet_us=5000, sharing_us=5000, most_bytes=1e6)


def progress(what: str, _share: float) -> None:
    victim = FOLDER / f"pid-{VICTIM}"
    if what.startswith(POINT) and victim.exists():
        pid = int(victim.read_text())
        victim.unlink()
        os.kill(pid, signal.SIGKILL)


(FOLDER / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
profile = measure_torchrun(effort=EFFORT, progress=progress)
if profile is not None:
    profile.save(FOLDER / "found.profile")
