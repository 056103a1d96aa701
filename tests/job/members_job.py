"""A member that works until it is out, and tells its starter of every epoch that it enters."""

import os
import sys
import threading
import time
from typing import Any

import torch.distributed as dist

from headrace.errors import StaleEpochError
from headrace.job.agreement import own_connection
from headrace.job.members import RoleMember, View
from headrace.launch.worker import Receive, Send, run_worker

PORT, ROLE = int(sys.argv[1]), sys.argv[2]


def member_of(receive: Receive, send: Send) -> None:
    store: Any = dist.TCPStore("127.0.0.1", PORT, is_master=False)  # pyright: ignore[reportPrivateImportUsage]
    incarnation = int(receive()["incarnation"])

    def load(view: View, payload: bytes) -> Any:
        return lambda: send(
            epoch=view.epoch, incarnation=incarnation, pid=os.getpid(), payload=payload.decode()
        )

    member = RoleMember(own_connection(store), ROLE, incarnation, load)

    def work() -> None:
        while True:
            with member.work():
                time.sleep(0.001)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            member.poll()
            time.sleep(0.005)
    except StaleEpochError as error:
        send(out=str(error))


if __name__ == "__main__":
    run_worker(member_of)
