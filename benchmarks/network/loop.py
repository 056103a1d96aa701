"""A training step's traffic without its arithmetic: buckets of gradients, checked bit by bit.

Computing is emulated: the loop sleeps. Every bucket holds the same random numbers in every step,
times a power of two that changes from step to step: results of one plan are then equal bit by bit
once it is divided out, and a collective that mixed two steps would be off by a factor.
"""

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist

TOLERANCE = 1e-5
_SCALES = 8


class Loop:
    """One rank's loop.

    Parameters
    ----------
    sizes : bytes of the buckets.
    compute_s : emulated computing a step, an equal part before every bucket.

    Attributes
    ----------
    calls : collectives made.
    wrong : results that were not the sum, rounding aside.
    changed : results whose bits differ from those of the same plan before.
    """

    def __init__(self, sizes: list[int], compute_s: float) -> None:
        self.calls = self.wrong = self.changed = 0
        self._compute_s = compute_s / len(sizes)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        every = [[_numbers(r, k, size) for k, size in enumerate(sizes)] for r in range(ranks)]
        self._own = every[rank]
        self._sum = [
            torch.stack([mine[k].double() for mine in every]).sum(0) for k in range(len(sizes))
        ]
        self._buckets = [torch.empty_like(each) for each in self._own]
        self._known: dict[tuple[int, int], torch.Tensor] = {}

    def step(self, number: int, group: Any) -> list[int]:
        """Take a step on `group`; returns the plan's epoch at every call."""
        scale = 2.0 ** (number % _SCALES)
        works: list[Any] = []
        epochs: list[int] = []
        for own, bucket in zip(self._own, self._buckets, strict=True):
            time.sleep(self._compute_s)
            torch.mul(own, scale, out=bucket)
            works.append(dist.all_reduce(bucket, group=group, async_op=True))
            epochs.append(group.switch.epoch)
        for work in works:
            work.wait()
        self.calls += len(works)
        for index, epoch in enumerate(epochs):
            self._check(index, epoch, self._buckets[index].div_(scale))
        return epochs

    def reset(self) -> None:
        """Start over for another group, whose plans may combine in another order."""
        self._known.clear()

    def digests(self) -> dict[str, str]:
        """Return a digest of every result, by "epoch.bucket"."""
        return {
            f"{epoch}.{index}": hashlib.sha256(found.numpy().tobytes()).hexdigest()[:16]
            for (epoch, index), found in self._known.items()
        }

    def _check(self, index: int, epoch: int, found: torch.Tensor) -> None:
        known = self._known.get((epoch, index))
        if known is not None:
            if torch.equal(known, found):
                return
            self.changed += 1
        else:
            self._known[epoch, index] = found.clone()
        wanted = self._sum[index]
        self.wrong += bool((found.double() - wanted).abs().max() > TOLERANCE * wanted.abs().max())


def _numbers(rank: int, index: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * index + rank)
    return torch.randn(size // 4, generator=generator)
