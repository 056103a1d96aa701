"""Training with several workers in one process, on the averaging and detection that jobs use.

The workers are ranks whose exchanges `run_together` carries out. Their weights are equal, as the
means are equal bit by bit, so there is one model; each has its own share of every batch, and an
`Averager` of its own with its residuals and warm starts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from benchmarks.compression.accuracy.tasks import Task
from headrace.compression.adapt.accordion import CriticalRegimes
from headrace.compression.adapt.batches import WARM_UP_EPOCHS, AccordionBatches
from headrace.compression.adapt.binding import ScheduleBinding
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import AllGather, AllReduce, Request, run_together
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy

WORKERS = 4
LAST = 3
"""Epochs at the end over which accuracy is averaged: less noise than the last one alone."""

Watcher = Callable[["Trainer", int], None]
"""Called with the trainer and the number of epochs that have ended."""


def sent_bytes(request: Request, ranks: int) -> float:
    """Return the bytes that one rank sends, by the algorithm that sends fewest."""
    payload = request.payload_bytes
    if isinstance(request, AllReduce):
        return 2 * (ranks - 1) / ranks * payload
    if isinstance(request, AllGather):
        return (ranks - 1) * payload
    return (ranks - 1) / ranks * payload


class Trainer:
    """One training: model, of a type of parameters, optimizer and the workers' averagers.

    Attributes
    ----------
    sent : bytes that a rank has sent.
    means : the last step's mean gradients, by name.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        policy: Policy,
        *,
        workers: int = WORKERS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.task, self.seed, self.workers = task, seed, workers
        torch.manual_seed(seed)
        self.model = task.model().to(dtype)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.parameters = list(self.model.parameters())
        self.shapes = {
            name: tuple(parameter.shape) for name, parameter in self.model.named_parameters()
        }
        self.averagers = [
            Averager(policy, self.shapes, rank=rank, ranks=workers) for rank in range(workers)
        ]
        self.optimizer = torch.optim.SGD(
            self.parameters, lr=task.rate, momentum=0.9, weight_decay=task.weight_decay
        )
        self.sent = 0.0
        self.means: dict[str, Tensor] = {}
        self.loss = nn.CrossEntropyLoss()

    def set_codecs(self, codecs: Mapping[str, CodecSpec]) -> None:
        """Give every worker the layers' codecs."""
        for averager in self.averagers:
            for name, codec in codecs.items():
                averager.set_codec(name, codec)

    def step(self, shares: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Train with one batch, given as the workers' shares."""
        gradients: list[list[Tensor]] = []
        for inputs, targets in shares:
            logits = self.model(inputs)
            loss = self.loss(logits.flatten(0, -2).float(), targets.flatten())
            gradients.append(
                [part.contiguous() for part in torch.autograd.grad(loss, self.parameters)]
            )
        exchanges = [
            averager.average(list(zip(self.names, parts, strict=True)))
            for averager, parts in zip(self.averagers, gradients, strict=True)
        ]
        run_together(exchanges, self._count)
        self.means = dict(zip(self.names, gradients[0], strict=True))
        for parameter, mean in zip(self.parameters, gradients[0], strict=True):
            parameter.grad = mean
        torch.nn.utils.clip_grad_norm_(self.parameters, self.task.clip)
        self.optimizer.step()

    def _count(self, rank: int, request: Request) -> None:
        if rank == 0:
            self.sent += sent_bytes(request, self.workers)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all parameters."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, targets: Tensor) -> float:
        """Return the share of right answers, in percent."""
        right = 0
        for part, wanted in zip(inputs.split(1000), targets.split(1000), strict=True):
            right += int((self.model(part).argmax(-1) == wanted).sum())
        return 100 * right / targets.numel()


def rate_of(task: Task, epoch: int) -> float:
    """Return the learning rate of an epoch: divided by ten at each decay."""
    return task.rate * 0.1 ** sum(epoch >= decay for decay in task.decays)


def shares_of(
    inputs: Tensor, targets: Tensor, order: Tensor, batch: int, workers: int
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return an epoch's batches, each as the workers' shares, as DistributedSampler makes them."""
    batches = order[: len(order) // batch * batch].view(-1, batch)
    return [
        [(inputs[own], targets[own]) for own in (rows[rank::workers] for rank in range(workers))]
        for rows in batches
    ]


def train(
    task: Task,
    seed: int,
    levels: LevelSchedule | str,
    *,
    epochs: int | None = None,
    watch: Watcher | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Train once, and return accuracy (percent), bytes of a rank, seconds and the decisions.

    Parameters
    ----------
    levels : a schedule, or the codec of all layers in all epochs.
    epochs : fewer than the task's, for trials.
    dtype : of the parameters.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    rules = levels.rules if not isinstance(levels, str) else RULES
    policy = Policy(
        codec=levels if isinstance(levels, str) else "none",
        smallest=rules.smallest,
    )
    trainer = Trainer(task, seed, policy, dtype=dtype)
    inputs, targets, *test = task.data(seed)
    binding = None
    if not isinstance(levels, str):
        binding = ScheduleBinding(levels, trainer.shapes, trainer.set_codecs)
    found: list[float] = []
    total = task.epochs if epochs is None else epochs
    for epoch in range(total):
        trainer.set_rate(rate_of(task, epoch))
        generator = torch.Generator().manual_seed(seed * 1000 + epoch)
        order = torch.randperm(len(inputs), generator=generator)
        for shares in shares_of(inputs, targets, order, task.batch, WORKERS):
            if task.augment is not None:
                shares = [(task.augment(own, generator), wanted) for own, wanted in shares]
            trainer.step(shares)
            if binding is not None:
                for name, mean in trainer.means.items():
                    binding.observe(name, mean)
                binding.end_step([rate_of(task, epoch)])
        if binding is not None:
            binding.end_epoch([rate_of(task, epoch + 1)])
        if epoch >= total - LAST:
            found.append(trainer.accuracy(*test))
        if watch is not None:
            watch(trainer, epoch + 1)
    return {
        "accuracy": sum(found) / len(found),
        "bytes": trainer.sent,
        "cpu_s": round(time.process_time() - began, 1),
        "decisions": [] if binding is None else list(binding.records.events),
    }


RULES = Policy(smallest=512)
"""The models are small: so are the tensors from which on compression is of use here."""


def train_batches(
    task: Task, seed: int, *, extreme: bool = False, epochs: int | None = None
) -> dict[str, Any]:
    """Train uncompressed with batches that grow outside of critical regimes, by a factor of eight.

    The small batch is the task's; with `extreme` the large one is 32 times as large (Figure 3.6).
    Norms are clipped at 1: these networks have no batch norm, and without it the first epoch at
    eight times the rate diverges.
    The task's rate is for a quarter of its batch, as 0.1 is for 128 of 512, after the warm-up.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    clipped = replace(task, clip=min(task.clip, 1.0))
    trainer = Trainer(clipped, seed, Policy(codec="none"))
    trainer.set_rate(task.rate / 4)
    inputs, targets, *test = task.data(seed)
    total = task.epochs if epochs is None else epochs
    order = _Order(len(inputs))
    batches = AccordionBatches(
        order,
        trainer.optimizer,
        small=task.batch,
        large=task.batch * (32 if extreme else 8),
        decay=lambda epoch: rate_of(task, epoch) / task.rate,
        regimes=CriticalRegimes(window=task.window, per_layer=False),
        reference=task.batch // 4,
        warm_up=max(1, WARM_UP_EPOCHS * task.epochs // 100),
        ranks=1,
    )
    found: list[float] = []
    for epoch in range(total):
        generator = torch.Generator().manual_seed(seed * 1000 + epoch)
        order.rows = torch.randperm(len(inputs), generator=generator).tolist()
        for rows in batches:
            picked = inputs[rows]
            if task.augment is not None:
                picked = task.augment(picked, generator)
            shares = [(picked[rank::WORKERS], targets[rows][rank::WORKERS]) for rank in range(4)]
            trainer.step(shares)
        batches.epoch()
        if epoch >= total - LAST:
            found.append(trainer.accuracy(*test))
    return {
        "accuracy": sum(found) / len(found),
        "bytes": trainer.sent,
        "cpu_s": round(time.process_time() - began, 1),
        "decisions": list(batches.records.events),
    }


class _Order(Sampler[int]):
    """An epoch's samples in an order that is set from outside."""

    def __init__(self, count: int) -> None:
        self.rows = list(range(count))

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
