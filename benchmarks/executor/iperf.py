"""iperf3 between two hosts of a testbed."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from headrace.launch.roles import Role, Roles
from headrace.settings import child_environment
from headrace.testbed import Testbed

PROGRAM = "iperf3"
_OMITTED_S = 1
"""While windows open."""

_PATIENCE_S = 10.0
_PAUSE_S = 0.1


def missing() -> str | None:
    """Return why iperf3 cannot be run, or None."""
    if shutil.which(PROGRAM) is not None:
        return None
    return f"{PROGRAM} is not installed: install it (Debian: apt-get install {PROGRAM})"


@contextmanager
def server(testbed: Testbed, host: str) -> Iterator[None]:
    """Serve on a host for as long as the block lasts."""
    role = Role(name="iperf3", argv=[PROGRAM, "--server"], start=partial(testbed.popen, host))
    # how it is ended here is nothing to report
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with Roles({host: role}, streams=silent, grace_s=_PATIENCE_S):
        yield


def bytes_per_s(testbed: Testbed, host: str, address: str, seconds: int) -> float:
    """Return the rate at which one stream from `host` arrives at the server at `address`.

    Raises
    ------
    RuntimeError : with what iperf3 said, if there is no server in time or the test fails.
    """
    command = [PROGRAM, "--client", address, "--json", "--time", str(seconds)]
    command = testbed.command(host, [*command, "--omit", str(_OMITTED_S)])
    end = time.monotonic() + _PATIENCE_S
    while True:
        done = subprocess.run(
            command,
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=seconds + _OMITTED_S + _PATIENCE_S,
            check=False,
        )
        said = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if done.returncode == 0 and "error" not in said:
            return float(said["end"]["sum_received"]["bits_per_second"]) / 8
        error = said.get("error") or done.stderr.strip()
        if "refused" not in error or time.monotonic() > end:
            raise RuntimeError(f"{PROGRAM} failed: {error}")
        time.sleep(_PAUSE_S)  # the server is not there yet
