"""HEADRACE_LOG_LEVEL counts where the application has no logging of its own."""

import subprocess
import sys

import pytest

from tests.waiting import JOB_S

PROGRAM = """
import logging, sys
if sys.argv[1] == "configured":
    logging.basicConfig(format="app %(message)s", level=logging.WARNING)
from headrace.collectives.run.torch.create import show_log
show_log(sys.argv[2], 3)
show_log(sys.argv[2], 3)
log = logging.getLogger("headrace.collectives.run.torch.create")
log.info("a group")
log.warning("a problem")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("application", "level", "lines"),
    [
        ("silent", "info", ["headrace[3] INFO: a group", "headrace[3] WARNING: a problem"]),
        ("silent", "warning", ["headrace[3] WARNING: a problem"]),
        ("configured", "info", ["app a problem"]),
    ],
)
def test_which_setting_decides_the_level(application: str, level: str, lines: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, application, level],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    )
    assert done.stderr.splitlines() == lines
    assert done.stdout == ""
