"""Offline adaptation: a plan book updated for a network that was measured again. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.collectives.adapt.act.quicktune import quicktune
from headrace.collectives.adapt.act.rebook import RangeChoice, book_masters, replanned
from headrace.collectives.adapt.observe.port_changes import bandwidth
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.request import METHOD, Method
from headrace.errors import InputError
from headrace.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapted:
    """The new book, the choice for every range, and the masters of an allreduce.

    Attributes
    ----------
    masters : of the largest allreduce, before (spread evenly, if the old plan had none) and after;
        None if there is no allreduce.
    lost_links : (src, dst) of those that the network no longer has: no plan uses them.
    """

    book: PlanBook
    choices: tuple[RangeChoice, ...]
    masters: tuple[Masters, Masters] | None
    lost_links: tuple[tuple[int, int], ...]


def adapt_book(
    book: PlanBook,
    topology: Topology,
    groups: RankGroups | None,
    progress: Callable[[str, float], None] | None = None,
    method: Method = METHOD,
) -> Adapted:
    """Return the best plans for `topology`: old ones, with masters moved, or replanned.

    Parameters
    ----------
    topology, groups : as measured now, for the same hosts in the same order.
    method : of plans that are made anew, but for its cost model, which is that of the book: their
        predictions are compared.

    Raises
    ------
    InputError : if the ranks, or their hosts, are others.
    """
    _check_same(book.topology, topology)
    rebuilt = build_book(
        topology,
        groups=groups,
        collectives=sorted({entry.collective for entry in book.entries}),
        method=replace(method, model=book.model),
        progress=progress,
    )
    tuned = _tuned(book, topology)
    retuned = replanned(book, rebuilt, None if tuned is None else tuned[1])
    lost_links = sorted(book.topology.link_index.keys() - topology.link_index.keys())
    return Adapted(
        book=retuned.book, choices=retuned.choices, masters=tuned, lost_links=tuple(lost_links)
    )


def _tuned(book: PlanBook, topology: Topology) -> tuple[Masters, Masters] | None:
    sizes = [e.plan.total_bytes for e in book.entries if e.collective is Collective.ALLREDUCE]
    masters = book_masters(book, {max(sizes): 1}) if sizes else None
    rates = bandwidth(topology)
    linked = bool((rates > 0).sum() == topology.ranks * (topology.ranks - 1))
    # masters are for networks in which every rank can send to every other
    return (masters, quicktune(masters, rates)) if masters is not None and linked else None


def _check_same(before: Topology, now: Topology) -> None:
    for what, old, new in (
        ("ranks", before.ranks, now.ranks),
        ("hosts of ranks", _homes(before), _homes(now)),
    ):
        if old != new:
            raise InputError(
                f"the profile has {what} {new}, the plan book {old}: adapting is for the same "
                "ranks on the same hosts; 'headrace collectives plan' makes a book for others"
            )


def _homes(topology: Topology) -> list[str]:
    return [topology.hosts[host] for host in topology.rank_host]
