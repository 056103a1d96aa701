"""One rank of the tests beside this: allreduces until one fails, then sends how it ended.

Sends {"address", "pid"}; once the first collective is done {"running"}; and at the end
{"rank", "error", "descriptors_before", "descriptors_after"}.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from headrace._native import DataType
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.launch.worker import Receive, Send, run_worker


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def outlive(parent: int, lives: Path) -> None:
    """Fork a child, as a data loader does, that outlives its parent while a file exists."""
    if os.fork() == 0:
        os.setsid()  # not ended with its parent's group, nor holding its standard streams
        os.closerange(0, 3)
        while os.getppid() == parent or lives.exists():
            time.sleep(0.05)
        os._exit(0)


def main(receive: Receive, send: Send) -> None:
    rank, ranks, deadline_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    host, options = sys.argv[4], sys.argv[5:]
    before = descriptors()
    executor = Executor(
        rank,
        ranks,
        secret="kill-test",
        host=host,
        shared_memory=not {"over tcp", "over tls"} & set(options),
        tls="over tls" in options,
    )
    send(address=executor.address, pid=os.getpid())
    executor.connect(receive()["addresses"], 60.0)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks)
    program = lower(templates.ring(demand))
    loaded = executor.load(program, verify(program))
    for option in options:
        if option.startswith("child:"):
            outlive(os.getpid(), Path(option.removeprefix("child:")))
    rounds = 20 if "twenty rounds" in options else 100_000
    data = np.zeros(4 << 20, np.float32)
    rows = [(data.ctypes.data, data.size, 1, ranks)]
    call = executor.prepare(loaded, rows, dtype=DataType.float32, deadline_s=deadline_s)
    error = ""
    try:
        for count in range(rounds):
            data[:] = rank
            executor.run(call)
            assert (data == sum(range(ranks))).all()
            if count == 0:
                send(running=True)
    except CommunicationError as caught:
        error = str(caught)
    executor.close()
    del executor  # its event queue goes with it
    send(
        rank=rank,
        error=error,
        descriptors_before=before,
        descriptors_after=descriptors(),
    )


if __name__ == "__main__":
    run_worker(main)
