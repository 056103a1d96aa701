"""Gradients of a model's dense part, averaged over the examples of all trainers."""

# torch does not export GradBucket from its stubs.
# pyright: reportPrivateImportUsage=false

import time
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.embeddings.errors import EmbeddingError


class DenseAverage(NamedTuple):
    """Average of a backward pass.

    Attributes
    ----------
    wait_s : from the last bucket of gradients to the end of all averages.
    sent_bytes : of the gradients.
    """

    wait_s: float
    sent_bytes: int


NO_AVERAGE = DenseAverage(0.0, 0)


class DenseGradients:
    """Communication hook of DistributedDataParallel: weighted by a share's part of the examples.

    A share without examples adds zeros, whatever its gradients are.

    Attributes
    ----------
    weight : of this trainer's gradients in the coming backward pass; all trainers' add up to 1.
    """

    def __init__(self) -> None:
        self.weight = 1.0
        self._averages: dict[Tensor, Tensor] = {}  # gradients of parameters
        self._last_bucket_s = 0.0
        self._averaged_s = 0.0
        self._bytes = 0

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to add up a bucket's weighted gradients."""
        buffer = bucket.buffer()
        if self.weight == 0:
            buffer.zero_()
        elif self.weight != 1:
            buffer.mul_(self.weight)
        self._note(bucket)
        self._last_bucket_s = time.perf_counter()
        self._bytes += buffer.nbytes
        work = dist.all_reduce(buffer, async_op=True)
        assert work is not None
        future: torch.futures.Future[list[Tensor]] = work.get_future()
        return future.then(self._averaged)

    def take_average(self) -> DenseAverage:
        """Return times and bytes since the last call: of one backward pass."""
        wait_s = max(0.0, self._averaged_s - self._last_bucket_s)
        sent_bytes, self._bytes = self._bytes, 0
        return DenseAverage(wait_s if sent_bytes else 0.0, sent_bytes)

    def check_unchanged(self) -> None:
        """Check, before a step, that gradients are those that were averaged.

        Raises
        ------
        EmbeddingError : a function such as `clip_grad_norm_` changed them.
        """
        smallest = self._smallest()
        averages, self._averages = self._averages, {}
        if smallest is None:
            return
        parameter, gradient = smallest
        averaged = averages[parameter].reshape(gradient.shape)
        if not torch.equal(gradient.nan_to_num(), averaged.nan_to_num()):
            raise EmbeddingError(
                "gradients were changed between backward() and step(): several trainers serve no "
                "clip_grad_norm_, which has not the gradients of embedding rows (clip with one "
                "trainer), and a GradScaler only where fit gets it as scaler="
            )

    def remember(self) -> None:
        """Let `check_unchanged` expect the gradients of now."""
        smallest = self._smallest()
        if smallest is not None:
            parameter, gradient = smallest
            self._averages = {parameter: gradient.clone()}

    def _note(self, bucket: dist.GradBucket) -> None:
        """Remember where the averaged gradients of parameters will be, by the newest pass."""
        self._averages.update(zip(bucket.parameters(), bucket.gradients(), strict=True))

    def _smallest(self) -> tuple[Tensor, Tensor] | None:
        """Return the smallest parameter with a gradient that a factor would change, and that.

        Others have none where a pass left them out, or where another optimizer had its step, and
        zero_grad, before.
        """
        for parameter in sorted(self._averages, key=Tensor.numel):
            if parameter.grad is not None and self._averages[parameter].any():
                return parameter, parameter.grad
        return None

    def _averaged(self, future: torch.futures.Future[list[Tensor]]) -> Tensor:
        self._averaged_s = time.perf_counter()
        return future.value()[0]
