"""One rank that measures, as a process of its own: ``python -m ...measure.launch.agent``.

It talks to the process that started it (`agents`) in lines of JSON. In: who it is, then the
addresses of all. Out: its own address, progress and the profile (rank 0), or an error. It
imports neither torch nor a launcher, so it starts in a fraction of a second.
"""

import base64
import json
import sys
from typing import Any, TextIO

from headrace.collectives.measure.effort import Effort
from headrace.collectives.measure.survey import measure_ranks
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.pacing import pace
from headrace.errors import HeadraceError
from headrace.settings import Settings


def serve(lines: TextIO, out: TextIO) -> None:
    """Do what `lines` say; returns when measuring is over or has failed."""

    def say(**message: Any) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        _measure(lines, say)
    except HeadraceError as error:
        say(error=str(error))
    except Exception as error:  # whatever it is, the parent must hear of it, not wait for it
        say(error=f"{type(error).__name__}: {error}")


def _measure(lines: TextIO, say: Any) -> None:
    task = json.loads(lines.readline())
    hosts: list[str] = task["hosts"]
    executor = Executor(task["rank"], len(hosts), host=task["listen"], token=task["token"])
    try:
        say(address=executor.address)
        addresses: list[str] = json.loads(lines.readline())["addresses"]
        executor.connect(addresses)
        pace(executor, addresses, Settings.from_environment())
        profile = measure_ranks(
            executor,
            hosts,
            effort=Effort(**task["effort"]),
            progress=lambda what, share: say(progress=[what, share]),
        )
        if profile is not None:
            say(profile=base64.b64encode(profile.to_artifact().to_bytes()).decode())
    finally:
        executor.close()


if __name__ == "__main__":
    try:
        serve(sys.stdin, sys.stdout)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)  # nobody is listening any more
