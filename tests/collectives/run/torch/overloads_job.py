"""One of two ranks that call a group in every overload that torch's docstrings list.

Prints as JSON: overload -> what differs from Gloo ("" if nothing), for a group of headrace alone
and for a backend of a group that has others. Before that the methods that Gloo lacks.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from headrace.collectives.run.torch.calls import ALIASES
from headrace.collectives.run.torch.dispatch import OPERATIONS
from headrace.collectives.run.torch.group import HeadraceBackend, HeadraceGroup

RANKS = 2
ROOT = 1
WAIT = timedelta(seconds=60)
OP = dist.ReduceOp.MAX
COLLECTIVES = {**{name: name for name in OPERATIONS}, **ALIASES}
"""Name in torch -> name of the method of `Calls`."""


class Signature(NamedTuple):
    """An overload as pybind11 prints it: names and types of its parameters after `self`."""

    method: str
    names: tuple[str, ...]
    types: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method}({', '.join(self.names)})"


def signatures(holder: type) -> Iterator[Signature]:
    """The overloads of the collectives and messages of a class of torch's C++."""
    for name, member in inspect.getmembers(holder):
        if name not in COLLECTIVES or not member.__doc__:
            continue
        for line in member.__doc__.splitlines():
            text = re.match(rf"(?:\d+\. )?{name}\(self: [\w.]+,? ?(.*)\) -> ", line)
            if text is None:
                continue
            parameters = re.findall(
                r"(\w+): ((?:[^,\[<]|\[(?:[^\[\]]|\[[^\]]*\])*\]|<[^>]*>)+)", text[1]
            )
            yield Signature(
                name,
                tuple(name for name, _ in parameters),
                tuple(kind for _, kind in parameters),
            )


def tensors(count: int, start: float) -> list[torch.Tensor]:
    return [torch.arange(3.0) + start + 10 * k for k in range(count)]


def leading(name: str, rank: int) -> list[Any]:
    """The tensors of a call of a method in the overload of the lists, and its split sizes."""
    own, every = tensors(1, rank), tensors(RANKS, 100 * rank)
    flat = torch.arange(3.0 * RANKS) + rank
    at_root = rank == ROOT
    return {
        "allreduce": [own],
        "allreduce_coalesced": [every],
        "broadcast": [own],
        "reduce": [own],
        "allgather": [[every], own],
        "all_gather_single": [flat, own[0]],
        "allgather_coalesced": [[tensors(2, 5) for _ in range(RANKS)], every],
        "all_gather_single_coalesced": [[flat], own],
        "gather": [[every] if at_root else [], own],
        "gather_single": [flat, own[0]],
        "scatter": [own, [every] if at_root else []],
        "reduce_scatter": [own, [every]],
        "reduce_scatter_single": [own[0], flat],
        "reduce_scatter_single_coalesced": [own, [flat]],
        "alltoall": [tensors(RANKS, 5), every],
        "all_to_all_single": [torch.zeros(3 * RANKS), flat, [3] * RANKS, [3] * RANKS],
        "barrier": [],
        "send": [own],
        "recv": [own],
        "recv_anysource": [own],
    }[name]


def values(signature: Signature, rank: int) -> list[Any]:
    """Arguments of an overload, in order."""
    data = leading(COLLECTIVES[signature.method], rank)
    arguments: list[Any] = []
    for position, kind in enumerate(signature.types):
        if position < len(data):
            value = data[position]
            depth = kind.count("Sequence[")
            arguments.append(value[0] if depth < depth_of(value) else value)
        elif "Options" in kind:
            arguments.append(filled(getattr(c10d, kind.split(" = ")[0].rsplit(".", 1)[-1])()))
        elif "ReduceOp" in kind:
            arguments.append(OP)
        elif "timedelta" in kind:
            arguments.append(WAIT)
        else:
            arguments.append(
                {"root": ROOT, "dstRank": 1 - rank, "srcRank": 1 - rank}.get(
                    signature.names[position], 0
                )
            )
    return arguments


def depth_of(value: Any) -> int:
    return 1 + depth_of(value[0]) if isinstance(value, list) and value else int(value == [])


def filled(options: Any) -> Any:
    for field, value in (("reduceOp", OP), ("rootRank", ROOT), ("timeout", WAIT)):
        if hasattr(options, field):
            setattr(options, field, value)
    return options


def moved(group: Any, signature: Signature, rank: int, *, named: bool) -> list[list[float]]:
    """Call, wait, and return what all tensors of the call then hold."""
    arguments = values(signature, rank)
    method = getattr(group, signature.method)
    by_name = named and not signature.names[0].startswith("arg")
    keywords = dict(zip(signature.names, arguments, strict=True)) if by_name else {}
    answer = None
    if signature.method == "send":
        answer = group.recv([torch.zeros(3)], 1 - rank, 0)
    elif signature.method.startswith("recv"):
        answer = group.send(tensors(1, rank), 1 - rank, 0)
    work = method(**keywords) if by_name else method(*arguments)
    work.wait()
    if answer is not None:
        answer.wait()
    if signature.method == "reduce" and rank != ROOT:
        return []  # Gloo's has partial results there
    return [tensor.tolist() for tensor in flattened(arguments)]


def flattened(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from flattened(member)


def expected(gloo: Any, signature: Signature, rank: int) -> list[list[float]] | None:
    """Gloo's results by the overload of the lists; None where Gloo has no such call."""
    try:
        return moved(gloo, signature, rank, named=False)
    except (RuntimeError, ValueError):
        return None


def main() -> None:
    dist.init_process_group("cpu:headrace,cuda:gloo", timeout=WAIT)
    rank = dist.get_rank()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    group = dist.new_group(backend="headrace", timeout=WAIT)
    gloo = dist.new_group(backend="gloo", timeout=WAIT)
    assert isinstance(backend, HeadraceBackend)
    assert isinstance(group, HeadraceGroup)
    outcomes: dict[str, str] = {}
    alone: set[str] = set()
    for target, holder in ((group, dist.ProcessGroup), (backend, c10d.Backend)):
        for signature in signatures(holder):
            reference = expected(gloo, signature, rank)
            if reference is None:
                alone.add(COLLECTIVES[signature.method])
            for named in (False, True):
                label = f"{holder.__name__}.{signature}{' by name' if named else ''}"
                try:
                    result = moved(target, signature, rank, named=named)
                except Exception as error:  # reported for every overload
                    outcomes[label] = f"{type(error).__name__}: {error}"
                    continue
                wrong = reference is not None and result != reference
                outcomes[label] = f"{result}, Gloo's is {reference}" if wrong else ""
    print("ALONE", sorted(alone))
    print("RESULTS", json.dumps(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
