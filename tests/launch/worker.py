"""A worker that answers commands: ``{"do": ...}``; see `main`."""

import os
import subprocess
import sys
import time
from typing import NoReturn

from headrace.errors import InputError
from headrace.launch.worker import Receive, Send, run_worker


def main(receive: Receive, send: Send) -> None:
    send(pid=os.getpid(), argument=sys.argv[1] if len(sys.argv) > 1 else None)
    while True:
        command = receive()
        match command.pop("do"):
            case "echo":
                send(**command)
            case "die":
                print("first line\nlast line", file=sys.stderr, flush=True)
                os._exit(command["code"])
            case "refuse":
                raise InputError("size is 3, needs 4")
            case "divide":
                send(result=1 / command["by"])
            case "print":
                print(command["text"], flush=True)
            case "have a child":
                child = subprocess.Popen(["sleep", "600"])
                send(child=child.pid)
            case "have a deaf child":
                script = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
                send(child=subprocess.Popen([sys.executable, "-c", script]).pid)
            case "compute":
                compute()
            case _:
                return


def compute() -> NoReturn:
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    run_worker(main)
