"""One rank that times many programs on one set of connections: ``python -m ...plans_rank TASK``.

The task is JSON: {"rank", "ranks", "listen", "folder", "programs", "bytes", "rounds"}. `programs`
is a pickle, made by the process that started this one, of [(program, proof)]; `rounds` lists the
indices of those to run, in order. Every result is compared with the expected one. The begin and end
of every call go to ``<folder>/<rank>.json``.
"""

import json
import pickle
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.rank_worker import await_text, check, fill, publish, start_together
from headrace._native import DataType
from headrace.collectives.demand import Collective
from headrace.executor import Executor

FULL_EXCHANGE = 0
"""The first program is the barrier's."""


def main() -> None:
    """Connect, load, run, write."""
    task = json.loads(sys.argv[1])
    rank, ranks, folder = task["rank"], task["ranks"], Path(task["folder"])
    executor = Executor(rank, ranks, host=task["listen"], secret="two-level")
    publish(folder / f"{rank}.address", executor.address)
    executor.connect([await_text(folder / f"{r}.address") for r in range(ranks)])
    made = pickle.loads(Path(task["programs"]).read_bytes())
    loaded = [executor.load(program, proof) for program, proof in made]
    chunks = [program.demand.chunks for program, _ in made]
    data = np.empty(task["bytes"] // 4, np.float32)
    flag = np.zeros(1, np.float32)

    def run(number: int, values: np.ndarray) -> None:
        segment = (values.ctypes.data, values.size, 1, chunks[number])
        executor.run(executor.prepare(loaded[number], [segment], dtype=DataType.float32))

    times: list[tuple[float, float]] = []
    for number in task["rounds"]:
        fill(Collective.ALLREDUCE, data, rank, ranks)
        run(FULL_EXCHANGE, flag)
        start_together()
        begin_us = time.monotonic() * 1e6
        run(number, data)
        times.append((begin_us, time.monotonic() * 1e6))
        check(Collective.ALLREDUCE, data, rank, ranks)
    publish(folder / f"{rank}.json", json.dumps(times))
    run(FULL_EXCHANGE, flag)
    executor.close()


if __name__ == "__main__":
    main()
