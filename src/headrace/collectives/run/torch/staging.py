"""Staging of device tensors: copied to host memory, moved as CPU tensors are, copied back.

Inputs of a call are in host memory before any byte of them is sent; outputs are copied back by the
thread that ends the call, and streams that wait for the call wait for the copies.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from enum import Flag
from typing import Any

import torch

from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.copies import CudaCopies, copies_for
from headrace.collectives.run.torch.work import PendingWork
from headrace.errors import InputError


class Use(Flag):
    """Access of a call to the tensors of one argument."""

    READ = 1
    WRITE = 2
    BOTH = 3


def staged(
    *uses: Use, at_root: Use | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Extend a call on CPU tensors to those of other devices.

    Parameters
    ----------
    uses : access to each of the leading arguments, which hold tensors.
    at_root : the same for the only such argument, at the root.
    """

    def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = first_tensor(args)
            copies = None if first is None else copies_for(first)
            if copies is None:
                return call(self, *args, **kwargs)
            copied = uses
            if at_root is not None and _root(args, kwargs) == self.rank():
                copied = (at_root,)
            return _call(functools.partial(call, self), copies, copied, args, kwargs)

        return method

    return decorate


def _call(
    call: Callable[..., Any],
    copies: CudaCopies,
    uses: Sequence[Use],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    by_argument = [list(tensors_in(arg)) for arg, _ in zip(args, uses, strict=False)]
    _check(by_argument, uses)
    read = [
        tensor
        for tensors, use in zip(by_argument, uses, strict=True)
        if Use.READ in use
        for tensor in tensors
    ]
    read_on_host = iter(copies.to_host(read))
    arguments: list[Any] = []
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for arg, tensors, use in zip(args, by_argument, uses, strict=False):
        if Use.READ in use:
            hosts = [next(read_on_host) for _ in tensors]
        else:
            hosts = [copies.room(tensor) for tensor in tensors]
        if Use.WRITE in use:
            pairs += [(t.detach(), host) for t, host in zip(tensors, hosts, strict=True)]
        arguments.append(_like(arg, iter(hosts)))
    work = call(*arguments, *args[len(uses) :], **kwargs)
    if isinstance(work, PendingWork):
        work.land(copies, pairs, by_argument[0])
    else:
        copies.to_device(pairs)
        copies.wait()
    return work


def _check(by_argument: Sequence[Sequence[torch.Tensor]], uses: Sequence[Use]) -> None:
    device = None
    for tensors, use in zip(by_argument, uses, strict=True):
        for tensor in tensors:
            (binding.check_writable if Use.WRITE in use else binding.check_dense)(tensor)
            device = device or tensor.device
            if tensor.device != device:
                raise InputError(
                    f"the tensors of one call are on {device} and {tensor.device}, needs one "
                    "device for all: move them with tensor.to()"
                )


def first_tensor(args: Sequence[Any]) -> torch.Tensor | None:
    """Return the first tensor of the arguments, which are tensors or (lists of) lists of them."""
    for arg in args:
        leaf = arg
        while isinstance(leaf, (list, tuple)):
            if not leaf:
                break
            leaf = leaf[0]
        if isinstance(leaf, torch.Tensor):
            return leaf
    return None


def _root(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    opts = args[1] if len(args) > 1 else kwargs.get("opts")
    return 0 if opts is None else opts.rootRank


def tensors_in(arg: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument: one, or (lists of) lists, which may hold other values."""
    if isinstance(arg, torch.Tensor):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for part in arg:
            yield from tensors_in(part)


def _like(arg: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return `arg` with its tensors replaced by others."""
    if isinstance(arg, torch.Tensor):
        return next(tensors)
    return [_like(part, tensors) for part in arg]
