"""One rank of test_fork: DDP whose data loader forks workers, and children that end in two ways."""

import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import headrace.torch
from headrace.errors import CommunicationError

CHILD_S = 120.0


class Refusing(Dataset[float]):
    """Samples whose worker calls a collective first, which has to be refused by name."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        try:
            dist.all_reduce(torch.ones(1))
        except CommunicationError as error:
            assert "forked child" in str(error), error
            return float(index)
        raise AssertionError("a collective ran in a worker")


def fork_and_end(end: str) -> None:
    """Fork a child that ends at once, as an interpreter does or without its clean-up."""
    child = os.fork()
    if child == 0:
        if end == "_exit":
            os._exit(0)
        sys.exit(0)
    deadline = time.monotonic() + CHILD_S
    status = None
    while status is None and time.monotonic() < deadline:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
        time.sleep(0.001)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == 0, f"a child that called {end} ended with {status}"


def main() -> None:
    warnings.simplefilter("ignore")
    loaders, exits = (int(count) for count in sys.argv[1:3])
    dist.init_process_group("headrace")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    shared = headrace.torch.empty(1 << 18)
    pending = dist.get_world_size() * torch.ones(1 << 18)
    for repeat in range(max(loaders, exits)):
        if repeat < loaders:
            loader = DataLoader(
                Refusing(), batch_size=2, num_workers=1, multiprocessing_context="fork"
            )
            for batch in loader:
                model(batch.float()[:, None]).sum().backward()
        shared.fill_(1.0)
        work = dist.all_reduce(shared, async_op=True)
        fork_and_end("exit" if repeat < exits else "_exit")
        assert work is not None
        work.wait()
        assert torch.equal(shared, pending)
    dist.barrier()
    dist.destroy_process_group()
    print("ok")


if __name__ == "__main__":
    main()
