"""Processes of a job that end at their n-th operation on the files of its folder.

``python -m tests.embeddings.run.killed_role KIND``, with `file_operations.c` preloaded, forks one
for each line of its input, as imports take longer than all else. Out: its messages, and its end.
A process that gets SIGTERM tells the operations that it has made, and ends.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from headrace.embeddings.run.process import MODULES, RoleSettings

library = ctypes.CDLL(None)


def main(kind: str) -> None:
    module = "tests.embeddings.run.committing_trainer" if kind == "trainer" else MODULES[kind]
    role = importlib.import_module(module)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            work(role, order)
        _, status = os.waitpid(child, 0)
        tell(ended=os.waitstatus_to_exitcode(status))


def tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def end(*_: object) -> NoReturn:
    tell(operations=library.counted_operations())
    os._exit(0)


def work(role: Any, order: Mapping[str, Any]) -> NoReturn:
    """Be a process of the job; it counts operations from now on."""
    signal.signal(signal.SIGTERM, end)
    try:
        tell(pid=os.getpid())
        library.count_operations(str(Path(order["folder"])).encode(), order["end_at"])
        if "settings" in order:
            served = role.serve(RoleSettings.from_message(order["settings"]), tell)
            tell(address=served.address)
            threading.Event().wait()
        role.train(**order["arguments"])
    except BaseException as error:
        tell(error=f"{type(error).__name__}: {error}")
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
