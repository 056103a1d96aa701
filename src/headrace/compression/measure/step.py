"""Times of a training step's parts: forward pass, gradients' readiness, slow-down, the rest."""

# torch does not export GradBucket from its stubs
# pyright: reportPrivateImportUsage=false

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace.compression.errors import CompressionError
from headrace.compression.names import parameter_names

LossOf = Callable[[nn.Module], torch.Tensor]
"""Runs the forward pass of a batch through the given model; returns the loss."""

OptimizerOf = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

WARM_UP = 3
"""Steps before those that count: DDP forms its buckets anew after the first."""


@dataclass(slots=True)
class StepTimes:
    """Times of one step, in us.

    Attributes
    ----------
    ready : of every bucket's gradients, after the backward pass began.
    """

    forward: float
    backward: float
    other: float
    ready: list[float]


@dataclass(slots=True)
class _Observed:
    """Observations of the communication hook in one step."""

    ready_s: list[float] = field(default_factory=list[float])
    names: list[list[str]] = field(default_factory=list[list[str]])


class ObservedModel:
    """A model under DistributedDataParallel, whose hook notes when each bucket is ready.

    Parameters
    ----------
    model : it is trained: pass a copy.
    communicate : average the gradients by allreduce; else they stay as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_of: LossOf,
        *,
        group: Any = None,
        optimizer: OptimizerOf | None = None,
        bucket_cap_mb: float = 25.0,
        communicate: bool = False,
    ) -> None:
        self._loss_of = loss_of
        self._group = group
        self._names = parameter_names(model)
        self.device = next(model.parameters()).device
        self._optimizer = optimizer(model.parameters()) if optimizer is not None else None
        self._ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_cap_mb)
        self._seen = _Observed()
        self._ddp.register_comm_hook(None, self._reduced if communicate else self._kept)

    @property
    def buckets(self) -> list[list[str]]:
        """Names of the parameters of every bucket, in the order in which they become ready."""
        return self._seen.names

    def step(self) -> StepTimes:
        """Take one step."""
        self._seen = _Observed()
        began = self._now()
        loss = self._loss_of(self._ddp)
        forward = self._now()
        loss.backward()
        self._check_gradients()
        ended = self._now()
        if self._optimizer is not None:
            self._optimizer.step()
        self._ddp.zero_grad()
        other_s = self._now() - ended
        ready = [ready_s - forward for ready_s in self._seen.ready_s]
        backward = ready[-1] if ready else ended - forward
        return StepTimes(
            forward=(forward - began) * 1e6,
            backward=backward * 1e6,
            other=other_s * 1e6,
            ready=[ready_s * 1e6 for ready_s in ready],
        )

    def _check_gradients(self) -> None:
        """Raise CompressionError if a parameter has none: DDP would wait for it then."""
        unused = [n for p, n in self._names.items() if p.requires_grad and p.grad is None]
        if unused:
            raise CompressionError(
                f"the loss does not depend on {len(unused)} parameters, {unused[0]!r} among them: "
                "freeze them (requires_grad_(False)), or return a model without them"
            )

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    def _note(self, bucket: dist.GradBucket) -> None:
        self._seen.ready_s.append(self._now())
        # within a bucket the gradient of the last parameter comes first
        names = [self._names[parameter] for parameter in bucket.parameters()]
        self._seen.names.append(names)

    def _kept(self, _state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._note(bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def _reduced(self, _state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._note(bucket)
        work: Any = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def typical(steps: Sequence[StepTimes]) -> StepTimes:
    """Return the medians of steps' times."""
    columns = zip(*(times.ready for times in steps), strict=True)
    return StepTimes(
        forward=statistics.median(times.forward for times in steps),
        backward=statistics.median(times.backward for times in steps),
        other=statistics.median(times.other for times in steps),
        ready=[statistics.median(column) for column in columns],
    )


def slowest(ranks: Sequence[StepTimes]) -> StepTimes:
    """Return one step's times of the rank that is the last at each point: exchanges wait for it.

    Points are counted from the end of the exchange before, so that the parts add up to the time at
    which the last rank arrives: the optimizer's step, the forward pass, then each bucket.
    """
    other_us = max(times.other for times in ranks)
    forward = max(times.other + times.forward for times in ranks) - other_us
    before = other_us + forward
    columns = zip(
        *([times.other + times.forward + us for us in times.ready] for times in ranks), strict=True
    )
    ready = [max(column) - before for column in columns]
    return StepTimes(
        forward=forward,
        backward=max(times.other + times.forward + times.backward for times in ranks) - before,
        other=other_us,
        ready=ready,
    )


def contention_of(observed: ObservedModel, work: Callable[[], None], steps: int) -> float:
    """Return by how many us the backward pass is delayed for each us of `work` beside it.

    Parameters
    ----------
    observed : communicates nothing.
    work : a codec's computation of a millisecond or more; a thread repeats it.
    """
    alone_us = _median_us(work)
    plain = typical([observed.step() for _ in range(steps)]).backward
    done, end = [0], threading.Event()

    def repeat() -> None:
        while not end.is_set():
            work()
            done[0] += 1

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    began = time.perf_counter()
    try:
        beside = typical([observed.step() for _ in range(steps)]).backward
    finally:
        end.set()
        thread.join()
    took_us = (time.perf_counter() - began) * 1e6
    # the share of the time that the work, undisturbed, would have needed
    busy = alone_us * done[0] / took_us
    return max(0.0, (beside - plain) / (beside * busy)) if busy > 0 else 0.0


def _median_us(work: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)
