"""Comparison of the ranks' calls before they begin, as `TORCH_DISTRIBUTED_DEBUG=DETAIL` asks for.

Without it a mismatch is detected by the ranks that receive data, which end the group: a rank that
only sends (to the root of a reduce, gather or scatter) may have returned by then, with nothing
to tell it. Here the ranks first all-gather a record of the call. All of them read the same records,
so that all raise or none does, and none has moved data: the group can be used afterwards.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace.collectives.demand import Collective
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.buffers import MOVED, Arithmetic, Binding, Tensors
from headrace.errors import CommunicationError
from headrace.job.same import ranks_by_value

_TEXT_BYTES = 512
_ROOTED: Mapping[Collective, str] = {
    Collective.BROADCAST: "from",
    Collective.REDUCE: "to",
    Collective.GATHER: "to",
    Collective.SCATTER: "from",
}
_OF_ONE_SHAPE = (Collective.BROADCAST, Collective.REDUCE, Collective.ALLGATHER)


class CallComparison:
    """Compares a collective with those that the other ranks begin, before it begins.

    An asynchronous call, too, begins once all ranks have reached it.

    Parameters
    ----------
    gather : all-gathers the rows of a tensor of bytes, of which each rank has its own, in place,
        within the deadline in torch's `opts`.
    """

    def __init__(self, rank: int, ranks: int, gather: Callable[[torch.Tensor, Any], None]) -> None:
        self._rank = rank
        self._ranks = ranks
        self._gather = gather

    def allreduce(self, tensors: Tensors, opts: Any) -> None:
        """Compare an allreduce that is about to begin.

        Raises
        ------
        CommunicationError : at all ranks, if their calls differ.
        """
        _, combine, average = binding.arithmetic(tensors[0].dtype, opts.reduceOp)
        operator = "avg" if average else combine.name
        self._compare(f"allreduce of {_shapes(tensors)} by {operator}", opts)

    def call(
        self, name: str, bound: Binding, tensors: Tensors, opts: Any, arithmetic: Arithmetic
    ) -> None:
        """Compare the collective of this name that is about to begin.

        Raises
        ------
        CommunicationError : at all ranks, if their calls differ.
        """
        collective = Collective(name)
        # sent to each rank, then received from each rank, in an all-to-all
        sizes = [size for _, size, blocks, _ in bound.segments for _ in range(blocks)]
        exchanged = sizes if collective is Collective.ALL_TO_ALL else ()
        self._compare(_description(collective, sizes, tensors, opts, arithmetic), opts, exchanged)

    def _compare(self, description: str, opts: Any, exchanged: Sequence[int] = ()) -> None:
        """Raise CommunicationError at all ranks unless their calls match.

        Parameters
        ----------
        exchanged : of an all-to-all, bytes sent to each rank, then bytes received from each.
        """
        rank, ranks = self._rank, self._ranks
        row = np.dtype(
            [("digest", "V32"), ("text", f"S{_TEXT_BYTES}"), ("exchanged", "<i8", 2 * ranks)]
        )
        records = torch.zeros(ranks * row.itemsize, dtype=torch.uint8, device="cpu")
        table = records.numpy().view(row)
        encoded = description.encode()
        table[rank]["digest"] = hashlib.sha256(encoded).digest()
        table[rank]["text"] = encoded[:_TEXT_BYTES]
        table[rank]["exchanged"][: len(exchanged)] = exchanged
        self._gather(records.view(ranks, -1), opts)
        if problem := mismatch(
            [bytes(record["digest"]) for record in table],
            [record["text"].decode(errors="replace") for record in table],
            table["exchanged"].reshape(ranks, 2, ranks),
        ):
            # the words of torch's comparison of other backends' calls
            raise CommunicationError(f"Detected mismatch between collectives on ranks. {problem}")


def mismatch(digests: Sequence[bytes], texts: Sequence[str], exchanged: np.ndarray) -> str:
    """Return how the ranks' calls differ; empty if they match.

    Parameters
    ----------
    digests, texts : descriptions of the calls, by rank.
    exchanged : int64, shape (ranks, 2, ranks): bytes that a rank sends to each rank, and bytes
        that it receives from each.
    """
    ranks_of = ranks_by_value(digests)
    if len(ranks_of) > 1:
        calls = "; ranks ".join(f"{ranks} call {texts[ranks[0]]}" for ranks in ranks_of.values())
        return f"Ranks {calls}: all ranks have to make the same calls in the same order"
    sent, received = exchanged[:, 0], exchanged[:, 1]
    pairs = np.argwhere(sent != received.T)
    if not len(pairs):
        return ""
    sender, receiver = map(int, pairs[0])
    return (
        f"All call {texts[0]}, but rank {sender} sends {sent[sender, receiver]} bytes to rank "
        f"{receiver}, which receives {received[receiver, sender]} from it: the split sizes have "
        "to agree"
    )


def _description(
    collective: Collective,
    sizes: Sequence[int],
    tensors: Tensors,
    opts: Any,
    arithmetic: Arithmetic,
) -> str:
    """Describe a collective by what has to be the same on all ranks."""
    if collective is Collective.ALLREDUCE:  # the only one that is no call of `allreduce`
        return "barrier"
    text = str(collective)
    if collective in _OF_ONE_SHAPE:
        text += f" of {_shapes(tensors)}"
    elif collective is not Collective.ALL_TO_ALL:
        unit = "bytes" if arithmetic is MOVED else f"elements of {arithmetic[0].name}"
        blocks = f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else f"{list(sizes)}"
        text += f" of {blocks} {unit}"
    if arithmetic is not MOVED:
        text += f" by {'avg' if arithmetic[2] else arithmetic[1].name}"
    if collective in _ROOTED:
        text += f" {_ROOTED[collective]} rank {opts.rootRank}"
    return text


def _shapes(tensors: Tensors) -> str:
    return ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors
    )
