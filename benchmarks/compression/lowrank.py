"""PowerSGD of rank 4 on ResNet-50's matrices: headrace's codec beside torch's `powerSGD_hook`.

Both run on one rank, in one thread, with error feedback and warm starts, on the same gradients. The
stock hook sums over a Gloo group of this process alone.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from benchmarks.compression.resnet import resnet50_shapes
from headrace.compression.codecs.codec import State
from headrace.compression.codecs.requests import Context, run_together
from headrace.compression.codecs.table import make_codec
from headrace.compression.policy import matrix_shape

RANK = 4
_SEEN = 8
"""Directions of the gradients' signal, beside noise: more than the codec keeps."""
_STEPS = 8
_START = 2
"""Steps that the stock hook sends uncompressed, the least it accepts with error feedback."""


def matrices(seed: int = 0) -> list[torch.Tensor]:
    """Return gradients of ResNet-50's matrices: few directions of falling size, and noise."""
    generator = torch.Generator().manual_seed(seed)
    made: list[torch.Tensor] = []
    for shape in resnet50_shapes():
        if len(shape) > 1:
            rows, columns = matrix_shape(shape)
            left = torch.randn(rows, _SEEN, generator=generator) * 0.6 ** torch.arange(_SEEN)
            noise = torch.randn(rows, columns, generator=generator)
            made.append(left @ torch.randn(_SEEN, columns, generator=generator) + 0.1 * noise)
    return made


class OurPowerSGD:
    """headrace's codec: residuals and states of all matrices."""

    def __init__(self, like: list[torch.Tensor], *, feedback: bool = True) -> None:
        self._codec = make_codec(f"powersgd:{RANK}")
        self._residuals = [torch.zeros_like(matrix) for matrix in like]
        self._states: list[State] = [{} for _ in like]
        self._context = Context(rank=0, ranks=1, feedback=feedback)

    def step(self, gradients: list[torch.Tensor]) -> None:
        """Replace gradients by their estimate."""
        given = gradients
        if self._context.feedback:
            given = self._residuals
            for residual, matrix in zip(given, gradients, strict=True):
                residual.add_(matrix)
        run_together([self._codec.average(given, gradients, self._states, self._context)])


class Bucket:
    """Bucket as the stock hook sees it, with all matrices: it hangs on several."""

    def __init__(self, vector: torch.Tensor, like: list[torch.Tensor]) -> None:
        self._vector = vector
        parts = vector.split([matrix.numel() for matrix in like])
        self.views = [part.view_as(matrix) for part, matrix in zip(parts, like, strict=True)]

    def buffer(self) -> torch.Tensor:
        """Return the vector of all gradients."""
        return self._vector

    def gradients(self) -> list[torch.Tensor]:
        """Return views of it."""
        return self.views

    def index(self) -> int:
        """Return its number."""
        return 0

    def is_last(self) -> bool:
        """Return whether the step ends with it."""
        return True


class StockPowerSGD:
    """torch's hook, with its defaults but for the rank."""

    def __init__(
        self, group: Any, vector: torch.Tensor, like: list[torch.Tensor], *, feedback: bool = True
    ) -> None:
        self._state = PowerSGDState(
            group,
            matrix_approximation_rank=RANK,
            start_powerSGD_iter=_START,
            use_error_feedback=feedback,
        )
        self.bucket = Bucket(vector, like)
        for _ in range(_START):
            self.step()

    def step(self) -> None:
        """Replace the bucket's gradients by their estimate."""
        powerSGD_hook(self._state, cast("dist.GradBucket", self.bucket)).wait()


@contextmanager
def alone() -> Iterator[Any]:
    """Yield a Gloo group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1
        )
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()


def errors(group: Any, gradients: list[torch.Tensor]) -> dict[str, float]:
    """Return what each loses of the same gradients without feedback: the differences' share.

    After some steps from the last ones' directions both are close to the best of their rank.
    """
    vector = torch.cat([matrix.flatten() for matrix in gradients])
    start, estimates = vector.clone(), [matrix.clone() for matrix in gradients]
    ours = OurPowerSGD(gradients, feedback=False)
    stock = StockPowerSGD(group, vector, gradients, feedback=False)
    for _ in range(_STEPS):
        vector.copy_(start)
        stock.step()
        for estimate, matrix in zip(estimates, gradients, strict=True):
            estimate.copy_(matrix)
        ours.step(estimates)
    ours_vector = torch.cat([estimate.flatten() for estimate in estimates])
    norm = torch.linalg.vector_norm(start)
    return {
        name: float(torch.linalg.vector_norm(estimate - start) / norm)
        for name, estimate in (("powerSGD_hook", vector), ("headrace", ours_vector))
    }
