"""One rank of the conformance sample (its checks are in `sample`), run by test_torch_backend.py.

Every check runs on every rank in this order; a check that fails on one rank but not on others
still lets the others go on, as every check makes the same calls.
"""

import json
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.conformance import absent_device
from tests.conformance.sample import (
    asynchronous,
    exchange,
    extensions,
    frameworks,
    groups,
    memory,
    messages,
    reduction,
    rooted,
    sparse,
)
from tests.conformance.sample.checks import CHECKS, SLOW, me

TOPICS = (
    reduction,
    rooted,
    sparse,
    exchange,
    messages,
    asynchronous,
    groups,
    memory,
    frameworks,
    extensions,
)
ORDER = [topic.__name__ for topic in TOPICS]
CHECKS.sort(key=lambda check: ORDER.index(check.__module__))  # stable: as they stand in a module


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace", timeout=timedelta(seconds=60))
    results: dict[str, str] = {}
    start = time.monotonic()
    quick = "--quick" in sys.argv
    if "--staged" in sys.argv:
        absent_device.install()
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for function in CHECKS:
        if (wanted and function.__name__ not in wanted) or (quick and function in SLOW):
            continue
        print(f"[{me()}] {time.monotonic() - start:.1f} s {function.__name__}", flush=True)
        try:
            function()
            results[function.__name__] = ""
        except Exception:  # every check is to be reported
            results[function.__name__] = traceback.format_exc()
    dist.barrier()
    dist.destroy_process_group()
    print("RESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

    main()
