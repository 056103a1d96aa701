"""Comparison of the ranks' values, such as policies and decisions, by one all-gather."""

# torch does not export the default group from its stubs
# pyright: reportPrivateImportUsage=false

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.compression.run.failures import FailureReports
from headrace.errors import CommunicationError, HeadraceError
from headrace.job.same import SHORT, difference, shortened


def require_same(
    values: Mapping[str, object],
    remedy: str,
    *,
    group: dist.ProcessGroup | None = None,
    error: type[HeadraceError] = CommunicationError,
) -> None:
    """Compare values of all ranks of a group by their ``repr``; a collective.

    Parameters
    ----------
    values : by name, in the plural; the same names on all ranks.
    remedy : end of the error's message.
    group : with a backend for tensors on the CPU; None: the default group.

    Raises
    ------
    error : on all ranks, if they differ, naming the first that differs and what every rank has.
    ExchangeError : a rank is missing.
    """
    group = group or dist.group.WORLD
    assert group is not None
    own = torch.zeros((len(values), SHORT), dtype=torch.uint8, device="cpu")
    for row, value in zip(own, values.values(), strict=True):
        encoded = shortened(repr(value)).encode()
        row[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    gathered = [torch.zeros_like(own) for _ in range(group.size())]
    reports = FailureReports(group, f"comparison of {', '.join(values)}")
    try:
        reports.wait(dist.all_gather(gathered, own, group=group, async_op=True))
    except RuntimeError as failure:
        raise reports.error(failure) from failure
    for index, name in enumerate(values):
        texts = [_text(table[index]) for table in gathered]
        if (problem := difference(name, texts, remedy)) is not None:
            raise error(problem)


def _text(row: Tensor) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode("ascii", "replace")
