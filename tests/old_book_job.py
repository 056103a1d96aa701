"""One rank, with a plan book that an earlier version wrote; run by old_files_test.py."""

import torch
import torch.distributed as dist

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

dist.init_process_group("headrace")
for elements in (256, 1 << 20):
    tensor = torch.full((elements,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert (tensor == 10.0).all()
dist.destroy_process_group()
print("reduced", flush=True)
