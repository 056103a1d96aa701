"""One rank of test_descriptors: a call in a callback, whose connections rank 0 cannot have."""

import resource
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.waiting import ENDLESS_S


def main() -> None:
    dist.init_process_group("headrace", timeout=timedelta(seconds=ENDLESS_S))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if dist.get_rank() == 0:
        in_use = sum(1 for _ in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 6, hard))
    ones = torch.ones(3)
    work = dist.all_reduce(ones, async_op=True)
    assert work is not None
    try:
        work.get_future().then(lambda _: dist.all_reduce(torch.ones(3))).wait()
        raise SystemExit("the call succeeded")
    except RuntimeError as error:
        assert "rank 0 cannot make more connections" in str(error), error
        assert "ulimit -n" in str(error), error
    dist.all_reduce(ones)  # the group goes on
    assert ones.tolist() == [dist.get_world_size() ** 2] * 3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
