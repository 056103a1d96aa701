"""Batch sizes that follow critical regimes."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, TensorDataset

from headrace.compression.adapt.accordion import CriticalRegimes
from headrace.compression.adapt.batches import AccordionBatches, scaled_rate
from headrace.compression.errors import CompressionError


def test_the_rate_scales_with_the_batch_after_a_warm_up() -> None:
    # 3.3: for a batch of 512, from 0.1 to 0.4 in five epochs
    rates = [scaled_rate(0.1, 512, 128, epoch, 5) for epoch in range(7)]
    assert rates == pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4, 0.4])
    assert scaled_rate(0.1, 4096, 128, 9, 5) == pytest.approx(8 * rates[-1])
    assert scaled_rate(0.1, 512, 128, 0, 0) == pytest.approx(0.4)


def made(
    decay_at: int = 99, *, fused: bool = False
) -> tuple[AccordionBatches, nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
    batches = AccordionBatches(
        SequentialSampler(range(70)),
        optimizer,
        small=8,
        large=32,
        decay=lambda epoch: 0.1 if epoch >= decay_at else 1.0,
        regimes=CriticalRegimes(window=1),
        reference=8,
        warm_up=0,
        ranks=2,
    )
    return batches, weight, optimizer


def run(made_: tuple[AccordionBatches, nn.Parameter, torch.optim.Optimizer], norms: list[float]):
    batches, weight, optimizer = made_
    loader = DataLoader(TensorDataset(torch.arange(70)), batch_sampler=batches)
    rows: list[tuple[int, int, float]] = []
    for norm in norms:
        sizes = [len(part) for (part,) in loader]
        assert len(sizes) == len(loader) == 70 // sizes[0]
        rows.append((batches.batch, sizes[0], round(optimizer.param_groups[0]["lr"], 6)))
        for _ in sizes:
            weight.grad = torch.tensor([norm, 0.0, 0.0])
            optimizer.step()
        batches.epoch()
    return rows


def test_large_batches_where_norms_are_steady() -> None:
    small, large = (8, 4, 0.1), (32, 16, 0.4)
    # more steps in an epoch of small batches: norms are those of a step, so that is no change
    assert run(made(), [1.0, 1.0, 1.0, 0.4, 0.4]) == [small, small, large, large, small]
    decayed = run(made(decay_at=4), [1.0] * 7)
    assert decayed == [small, small, large, large, (8, 4, 0.01), (32, 16, 0.04), (32, 16, 0.04)]


@pytest.mark.parametrize("fused", [False, True])
def test_norms_are_those_of_gradients_without_a_scaler(fused: bool) -> None:
    """A fused optimizer gets scaled gradients: all training was critical when the scale changed."""
    batches, weight, optimizer = made(fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # it has no scale before
    sizes: list[int] = []
    for scale in (2.0, 64.0, 4.0, 32.0):
        sizes.append(batches.batch)
        scaler.update(scale)
        for gradient in (1.0, math.inf):
            weight.grad = torch.tensor([scale * gradient, 0.0, 0.0])
            scaler.step(optimizer)
            scaler.update()
        batches.epoch()
    assert sizes == [8, 8, 32, 32]


def test_it_goes_on_from_its_state() -> None:
    whole = run(made(decay_at=4), [1.0] * 7)
    first, second = made(decay_at=4), made(decay_at=4)
    begun = run(first, [1.0] * 3)
    second[0].load_state_dict(first[0].state_dict())
    assert begun + run(second, [1.0] * 4) == whole


def test_groups_that_an_optimizer_gets_later_have_their_rates_scaled() -> None:
    """Gradual unfreezing ended in a ValueError of zip() at the end of the epoch."""
    batches, _, optimizer = made()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.02})
    batches.epoch()
    batches.epoch()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.4, 0.08])
    optimizer.param_groups[1]["lr"] = 0.0
    batches.load_state_dict(batches.state_dict())
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.08)


def test_trainers_set_the_epoch_of_its_sampler() -> None:
    """Under Lightning every epoch had the first one's order."""
    sampler = DistributedSampler(range(70), num_replicas=2, rank=0)  # type: ignore[arg-type]
    batches = AccordionBatches(sampler, made()[2], small=8, large=32, ranks=2)
    loader = DataLoader(TensorDataset(torch.arange(70)), batch_sampler=batches)
    orders: list[list[int]] = []
    for epoch in range(2):
        loader.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[union-attr]
        orders.append([int(index) for (part,) in loader for index in part])
    assert orders[0] != orders[1]


def test_bad_sizes() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for arguments, needed in (
        ({"small": 9}, "small is 9, needs a multiple of 2 ranks"),
        ({"small": 64, "large": 32}, "large is 32, needs at least small, 64"),
        ({"regimes": CriticalRegimes(unit="steps")}, "needs one in epochs"),
    ):
        with pytest.raises(CompressionError, match=needed):
            AccordionBatches(SequentialSampler([]), optimizer, ranks=2, **arguments)


class Sharded(nn.Parameter):
    """As torch's DTensor."""

    full_tensor = None


def test_sharded_parameters_are_refused() -> None:
    """The first step of the optimizer ended in torch's error of mixed tensors."""
    optimizer = torch.optim.SGD([Sharded(torch.zeros(1))], lr=0.1)
    with pytest.raises(CompressionError, match="needs those of a DistributedDataParallel"):
        AccordionBatches(SequentialSampler([]), optimizer, ranks=2)
