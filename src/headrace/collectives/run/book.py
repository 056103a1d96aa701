"""The plan book of a job, and the check that it fits the job."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.executor.connect.addresses import host_of

if TYPE_CHECKING:
    from headrace.collectives.plan.book import PlanBook
    from headrace.topology import Topology


def load_book(path: Path | None) -> "PlanBook | None":
    """Read the plan book at `path` (HEADRACE_PLAN_BOOK); None if no path is set.

    Raises
    ------
    ArtifactError : naming the file and the field.
    """
    if path is None:
        return None
    from headrace.collectives.plan.book import PlanBook  # loaded only where there is a book

    return PlanBook.load(path)


def channels(book: "PlanBook | None") -> int:
    """Return the number of connections per pair of ranks that the book's programs use."""
    programs = () if book is None else book.programs
    return max(
        (int(program.lanes["channel"].max(initial=0)) + 1 for program, _ in programs), default=1
    )


def fitting(
    book: "PlanBook | None",
    rank_host: Sequence[int],
    addresses: Sequence[str] = (),
    *,
    warn: bool,
) -> "PlanBook | None":
    """Return `book` if it was made for the same placement of ranks, else None.

    Parameters
    ----------
    rank_host : for every rank of the whole job, the index of the host it runs on.
    addresses : listening addresses by rank, "host:port"; empty if not known.
    warn : warn if the book does not fit; set on one rank of the job.
    """
    if book is None:
        return None
    problem = _misfit(book.topology.rank_host, rank_host) or _other_order(
        _known_addresses(book.topology), [host_of(address) for address in addresses]
    )
    if problem is None:
        return book
    if warn:
        warnings.warn(
            f"the plan book in HEADRACE_PLAN_BOOK does not fit this job: {problem}. The job uses "
            "templates instead; measure again with this placement and order, then plan again",
            stacklevel=2,
        )
    return None


def describe_book(book: "PlanBook | None") -> str:
    """Return one line on the plan book, or the templates, that a group uses."""
    if book is None:
        return "templates, as it has no plan book"
    groups = "no groups" if book.groups is None else f"groups {[list(g) for g in book.groups]}"
    return (
        f"plan book {book.digest[:12]} with {len(book.entries)} plans, by "
        f"{len(book.programs)} programs, made for hosts "
        f"{', '.join(book.topology.hosts)} and {groups}"
    )


def _misfit(planned: Sequence[int], running: Sequence[int]) -> str | None:
    if len(planned) != len(running):
        return f"it was made for {len(planned)} ranks, the job has {len(running)}"
    for a in range(len(running)):
        for b in range(a):
            if (planned[a] == planned[b]) != (running[a] == running[b]):
                same = "the same host" if planned[a] == planned[b] else "different hosts"
                return f"it has ranks {b} and {a} on {same}, in the job they are not"
    return None


def _known_addresses(topology: "Topology") -> list[str]:
    """Return addresses by rank; hosts measured under torchrun have theirs as names."""
    located = topology.addresses or topology.hosts
    return [located[host] for host in topology.rank_host]


def _other_order(planned: Sequence[str], running: Sequence[str]) -> str | None:
    """Compare addresses by rank, except those of hosts that were not measured."""
    for rank, (before, now) in enumerate(zip(planned, running, strict=False)):
        if before != now and now in planned:
            return (
                f"it was made for ranks in another order (the host of rank {rank}, {now}, had "
                f"rank {planned.index(now)} then)"
            )
    return None
