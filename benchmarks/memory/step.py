"""Instruments for a training step: peak of allocations, paired times, gradients.

A step is forward pass, loss and backward pass of one batch. Before it, parameters have no gradients
(`zero_grad` sets them to None), so that those it makes count as its allocations.
"""

import statistics
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

MIB = 2**20
CPU_ALIGNMENT = 64
"""Of torch's CPU allocator, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training step that can be repeated.

    Attributes
    ----------
    model : the module whose parameters get gradients.
    forward : inputs and targets -> loss.
    seed : of torch's generator at the start of every run: masks of dropout are the same in all.
    """

    model: nn.Module
    forward: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    seed: int = 1

    def run(self) -> Tensor:
        """Run forward and backward pass, and return the loss."""
        torch.manual_seed(self.seed)
        loss = self.forward(self.inputs, self.targets)
        loss.backward()
        return loss.detach()

    def clear(self) -> None:
        """Free the gradients."""
        self.model.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """Allocations of a call, in bytes, above what was allocated before it.

    Attributes
    ----------
    peak_bytes : highest sum at any time.
    kept_bytes : what is still allocated at the end: gradients, after a step.
    count : number of allocations.
    """

    peak_bytes: int
    kept_bytes: int
    count: int


def allocations(call: Callable[[], object], alignment: int = 1) -> Allocations:
    """Count the bytes that torch's CPU allocator hands out during a call.

    The profiler records every allocation and release, in the operators' inside, too, so the result
    is exact and repeatable. Memory that was there before does not count, nor does its release; nor
    do buffers that oneDNN allocates by itself, which only `benchmarks.resident` shows.

    Parameters
    ----------
    alignment : each allocation counts as a multiple of it, as in a profile (`CPU_ALIGNMENT`).
    """
    profiled = profile(use_kineto=True, profile_memory=True)
    with profiled:
        result = call()
        del result
    recorded = profiled.kineto_results
    assert recorded is not None
    current = peak = count = 0
    for event in recorded.events():
        if event.name() == "[memory]":
            nbytes: int = event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            size = -(-abs(nbytes) // alignment) * alignment
            change = size if nbytes > 0 else -size
            current += change
            count += change > 0
            peak = max(peak, current)
    return Allocations(peak_bytes=peak, kept_bytes=current, count=count)


def step_allocations(step: Step, *, accumulate: bool = False, alignment: int = 1) -> Allocations:
    """Return the allocations of a step that ran before (what its first run compiles counts, too).

    Parameters
    ----------
    accumulate : with gradients that are there before and added to: they do not count. Otherwise
        the step makes them, and they do.
    alignment : see `allocations`.
    """
    if accumulate:
        step.run()
    found = allocations(step.run, alignment)
    step.clear()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of a step, in rounds with others.

    Attributes
    ----------
    seconds : processor time of the process, a round each.
    elapsed : the median of elapsed seconds.
    """

    seconds: tuple[float, ...]
    elapsed: float

    @property
    def typical(self) -> float:
        """Median of processor time."""
        return statistics.median(self.seconds)

    def over(self, other: "Times") -> float:
        """Return the median of the ratios of both times in the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def paired_times(steps: Mapping[str, Step], rounds: int) -> dict[str, Times]:
    """Run all steps by turns, in an order that rotates. All ran before: the first run is slower.

    Processor time counts what the kernels and the memory management of the system take, and is
    that of an idle machine's clock with one thread; other processes prolong it little.
    """
    names = list(steps)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.process_time(), time.perf_counter()
            steps[name].run()
            spent[name].append((time.process_time() - began[0], time.perf_counter() - began[1]))
            steps[name].clear()
    return {
        name: Times(
            seconds=tuple(processor for processor, _ in found),
            elapsed=statistics.median(elapsed for _, elapsed in found),
        )
        for name, found in spent.items()
    }


def gradients(step: Step) -> dict[str, Tensor]:
    """Return the gradients of a step, by the parameters' names."""
    step.clear()
    step.run()
    found = {
        name: parameter.grad
        for name, parameter in step.model.named_parameters()
        if parameter.grad is not None
    }
    step.clear()
    return found


def relative_error(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Return the norm of all differences over the norm of all exact values."""
    assert found.keys() == exact.keys()
    squares = sum(
        float((found[name].double() - value.double()).square().sum())
        for name, value in exact.items()
    )
    return (squares / sum(float(value.double().square().sum()) for value in exact.values())) ** 0.5


@contextmanager
def one_thread() -> Generator[None]:
    """Compute with one thread of torch, then restore their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
