"""One rank of the soak with threads: ``python -m ...soak_threads_rank TASK``.

The task is JSON: {"collectives", "messages", "seed"}. Between random collectives (`soak_rank`) the
ranks exchange messages in pairs whose receives are posted at a random moment while the message is
arriving, and another receive keeps the executor's own thread at work. Ends with a line of JSON:
wrong results, and calls that ran out of time.
"""

import json
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.executor.soak_rank import Soak
from benchmarks.jobs import emit
from headrace.errors import CommunicationError

DEADLINE_S = 30.0
BATCH = 50
"""Collectives between two batches of messages."""

_ELEMENTS = 100_000
_MOST_WAIT_S = 0.0006
_LARGE_TAG, _SMALL_TAG = 2, 1


def exchange(me: int, count: int, random_: random.Random) -> int:
    """Send `count` large messages from even ranks to the next; return the number of wrong ones."""
    wrong = 0
    small = torch.ones(1)
    for number in range(count):
        large = torch.full((_ELEMENTS,), float(number))
        if me % 2 == 0:
            dist.isend(large, me + 1, tag=_LARGE_TAG).wait()
            dist.send(small, me + 1, tag=_SMALL_TAG)
            continue
        pending = dist.irecv(torch.empty(1), me - 1, tag=_SMALL_TAG)
        until = time.perf_counter() + random_.random() * _MOST_WAIT_S
        while time.perf_counter() < until:
            pass  # sleeping is not as exact
        found = torch.zeros(_ELEMENTS)
        dist.recv(found, me - 1, tag=_LARGE_TAG)
        pending.wait()
        wrong += not torch.equal(found, large)
    return wrong


def main() -> None:
    """Alternate collectives and messages until done, or until a call fails."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("headrace", timeout=timedelta(seconds=DEADLINE_S))
    soak = Soak(task["seed"])
    random_ = random.Random(f"{task['seed']}/{soak.rank}")
    wrong, error, first = 0, "", 0
    batches = task["collectives"] // BATCH
    try:
        for first in range(0, batches * BATCH, BATCH):
            soak.run(first, first + BATCH)
            wrong += exchange(soak.rank, task["messages"] // batches, random_)
        dist.barrier()
    except CommunicationError as caught:
        error = f"{caught} (after collective {first})"
    emit("done", rank=soak.rank, wrong=wrong + len(soak.wrong), failure=error)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
