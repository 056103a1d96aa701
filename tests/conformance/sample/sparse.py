"""Sums of sparse tensors, and sparse gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from tests.conformance.sample.checks import FLOATS, check, everyone, me, raises, same

SIZE = (7, 5, 3)


def scattered(
    rank: int, count: int, dtype: torch.dtype = torch.float32, dense: int = 1
) -> torch.Tensor:
    """Small whole numbers at random places, some of which come twice."""
    generator = torch.Generator().manual_seed(rank + 1)
    places = [torch.randint(0, size, (count,), generator=generator) for size in SIZE]
    shape = (count, *SIZE[len(SIZE) - dense :])
    values = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    return torch.sparse_coo_tensor(
        torch.stack(places[: len(SIZE) - dense]), values, SIZE, check_invariants=True
    )


def is_sum(found: torch.Tensor, parts: list[torch.Tensor]) -> None:
    assert found.is_sparse
    assert found.is_coalesced()
    same(found.to_dense(), torch.stack([part.to_dense() for part in parts]).sum(0))


@check
def sums_of_sparse_tensors() -> None:
    for dtype in (*FLOATS, torch.int64):
        for dense in (0, 1, 2):
            for counts in ([4 + 3 * rank for rank in everyone()], [0] * len(everyone())):
                parts = [scattered(r, n, dtype, dense) for r, n in enumerate(counts)]
                own = parts[me()].clone()
                dist.all_reduce(own)
                is_sum(own, parts)
    # elements on the last rank only, which has already brought together what is in one place
    parts = [scattered(r, 20 if r == len(everyone()) - 1 else 0).coalesce() for r in everyone()]
    own = parts[me()].clone()
    dist.all_reduce(own)
    is_sum(own, parts)
    scalar = torch.tensor(2.0).to_sparse()
    dist.all_reduce(scalar)
    assert scalar.to_dense().item() == 2 * len(everyone())


@check
def sums_of_sparse_tensors_beside_other_calls() -> None:
    n = len(everyone())
    parts = [[scattered(rank, 5 * i + rank) for rank in everyone()] for i in range(6)]
    own = [of_call[me()].clone() for of_call in parts]
    dense = [torch.full((1000 * i + 1,), 1.0) for i in range(6)]
    works = []
    for sparse, other in zip(own, dense, strict=True):
        works.append(dist.all_reduce(sparse, async_op=True))
        works.append(dist.all_reduce(other, async_op=True))
    dist.barrier()
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    for sparse, of_call, other in zip(own, parts, dense, strict=True):
        is_sum(sparse, of_call)
        assert (other == n).all()
    again = scattered(me(), 9)
    future = dist.all_reduce(again, async_op=True).get_future()
    is_sum(future.wait()[0], [scattered(rank, 9) for rank in everyone()])
    is_sum(again, [scattered(rank, 9) for rank in everyone()])


@check
def sparse_tensors_that_have_no_sum_get_clear_errors() -> None:
    for op in (ReduceOp.MAX, ReduceOp.AVG):
        with raises(ValueError, "sparse", "SUM"):
            dist.all_reduce(scattered(me(), 3), op)
    with raises(ValueError, "layout", "sparse_csr"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    if len(everyone()) > 1:
        with raises(
            ValueError, "sparse tensors of ranks differ: rank 0 has", "torch.float32 (3, 3)"
        ):
            dist.all_reduce(torch.eye(4 if me() == 0 else 3).to_sparse())
        with raises(ValueError, "torch.float64", "torch.float32"):
            work = dist.all_reduce(scattered(0, 3, FLOATS[me() % 2]), async_op=True)
            work.wait()
        with raises(ValueError, "1 dimensions of it sparse"):
            dist.all_reduce(torch.eye(3).to_sparse(1 + me() % 2))
    one = torch.ones(1)
    dist.all_reduce(one)  # and none of them broke the group
    assert one.item() == len(everyone())


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 8, sparse=sparse)
        self.linear = nn.Linear(8, 10)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embedding(words))


def trained(sparse: bool) -> list[torch.Tensor]:
    model = DistributedDataParallel(Words(sparse))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        words = torch.tensor([me(), 3, 3, 7 + step])
        loss = nn.functional.cross_entropy(model(words), torch.tensor([1, 2, 3, 4]))
        loss.backward()
        assert model.module.embedding.weight.grad.is_sparse == sparse
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@check
def sparse_gradients_train_as_dense_ones_do() -> None:
    """``nn.Embedding(sparse=True)`` under DDP was refused."""
    for found, wanted in zip(trained(sparse=True), trained(sparse=False), strict=True):
        torch.testing.assert_close(found, wanted)
