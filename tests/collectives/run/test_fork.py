"""A forked child (a data loader's worker) and the executors that are its parent's."""

import os
import subprocess
import sys

import pytest

CHILD = """
import gc, os, sys, threading, time
from headrace.collectives.run.executor import Executor

executors = [Executor(rank, 2, secret="s", threads=int(sys.argv[1])) for rank in (0, 1)]
addresses = [executor.address for executor in executors]
joining = [threading.Thread(target=one.connect, args=(addresses,)) for one in executors]
for thread in joining:
    thread.start()
for thread in joining:
    thread.join()
time.sleep(0.1)  # their threads are asleep by now
child = os.fork()
if child == 0:
    executors.clear()
    del joining, thread
    gc.collect()
    os._exit(0)
ended = 0
end = time.monotonic() + 10
while ended == 0 and time.monotonic() < end:
    ended, _ = os.waitpid(child, os.WNOHANG)
    time.sleep(0.01)
if ended == 0:
    os.kill(child, 9)
    os.waitpid(child, 0)
for executor in executors:
    executor.close()
sys.exit(0 if ended else "the child did not let go of its parent's executors")
"""


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_child_lets_go_of_its_parents_executors(threads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, threads],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
