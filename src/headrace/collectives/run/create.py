"""Making a process group: the ranks meet, compare plan books, connect."""

import atexit
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from headrace.collectives.run.backend import HeadraceGroup
from headrace.collectives.run.book import channels, described, fitting, load_book
from headrace.collectives.run.caller import Caller
from headrace.collectives.run.choice import Chooser
from headrace.collectives.run.completions import completion_thread
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.log import show_log
from headrace.collectives.run.pacing import pace
from headrace.collectives.run.rendezvous import Rendezvous, of_this_group
from headrace.settings import Settings

# A process that ends without destroy_process_group may have crashed: its peers want to know soon.
_LAST_CHANCE_S = 1.0

log = logging.getLogger(__name__)

_live: "weakref.WeakSet[HeadraceGroup]" = weakref.WeakSet()


def create(options: Any) -> HeadraceGroup:
    """Make the process group that torch's `init_process_group` or `new_group` asked for.

    Parameters
    ----------
    options : torch's ``_DistributedBackendOptions``.

    Raises
    ------
    InputError : the ranks' plan books differ; a setting is wrong.
    CommunicationError : naming the ranks that did not come in time.
    """
    settings = Settings.from_environment()
    rank, ranks, members = options.group_rank, options.group_size, options.global_ranks_in_group
    show_log(settings.log_level, members[rank] if members else rank)
    timeout_s = min(options.timeout.total_seconds(), settings.deadline_s)
    book = load_book(settings.plan_book)
    store = of_this_group(options.store, rank)
    rendezvous = Rendezvous(store, rank, ranks, timeout_s)
    meeting = rendezvous.meet(
        interface=settings.socket_interface,
        listen=settings.paced_address,
        book_digest="" if book is None else book.digest,
        channels=max(settings.channels, channels(book)),
    )
    if members and list(members) != list(range(dist.get_world_size())):
        book = None  # it was made for the whole job
    executor = Executor(
        rank,
        ranks,
        host=meeting.host,
        token=meeting.token,
        channels=meeting.channels,
        completions=completion_thread.queue,
    )
    try:
        addresses = rendezvous.addresses(executor.address)
        executor.connect(addresses, timeout_s)
        pace(executor, addresses, settings)
    except BaseException:
        executor.close()
        raise
    # after the connections, whose addresses tell hosts apart
    book = fitting(book, meeting.rank_host, addresses, speak=rank == 0)
    if rank == 0:
        log.info("group of %d ranks on %s: %s", ranks, _hosts(meeting.rank_host), described(book))
    group = HeadraceGroup(
        Caller(executor, Chooser(ranks, book), timeout_s), options.group_id, store
    )
    _live.add(group)
    return group


def _hosts(rank_host: Sequence[int]) -> str:
    count = len(set(rank_host))
    return "1 host" if count == 1 else f"{count} hosts"


@atexit.register
def _close_all() -> None:
    """Close what the script left open: no thread may outlive the interpreter."""
    for group in list(_live):
        group.shutdown(_LAST_CHANCE_S)
    completion_thread.forget()
