"""Creation of a process group: rendezvous of the ranks, comparison of plan books, connections."""

import hmac
import logging
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, PrefixStore, get_debug_level

from headrace.collectives.run.book import channels, describe_book, fitting, load_book
from headrace.collectives.run.choose import Chooser
from headrace.collectives.run.offers import GroupConfig
from headrace.collectives.run.rendezvous import Joined, Rendezvous, allgather_addresses
from headrace.collectives.run.switch import PlanSwitch
from headrace.collectives.run.torch.callbacks import Callbacks
from headrace.collectives.run.torch.caller import Caller
from headrace.collectives.run.torch.compared import CallComparison
from headrace.collectives.run.torch.completions import completion_threads
from headrace.collectives.run.torch.group import HeadraceBackend, HeadraceGroup, check_device
from headrace.collectives.run.torch.split import Origin
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.executor.connect.addresses import host_of
from headrace.executor.connect.descriptors import shortage
from headrace.executor.pacing import pace
from headrace.units import LONGEST_S

if TYPE_CHECKING:
    from headrace.collectives.plan.book import PlanBook

# A process that ends without destroy_process_group may have crashed: its peers must detect it soon.
_LAST_CHANCE_S = 1.0

log = logging.getLogger(__name__)

_live: "weakref.WeakSet[HeadraceGroup | HeadraceBackend]" = weakref.WeakSet()


Follow = Callable[
    [Any, Executor, PlanSwitch, "PlanBook | None", CollectiveSettings], Callable[[], None] | None
]
"""Starts to adapt a group's plans and to show its metrics, given its store and more; returns the
function that ends both."""


def create(
    options: Any,
    follow: Follow | None = None,
    kind: type[HeadraceGroup | HeadraceBackend] | None = None,
) -> HeadraceGroup | HeadraceBackend:
    """Make a group for torch's `init_process_group` or `new_group`.

    It is a whole process group, or the backend of one device in a group that has others.

    Parameters
    ----------
    options : torch's ``_DistributedBackendOptions``.
    follow : adapts the plans of a group with a plan book, and shows metrics, while it exists.
    kind : which of the two to make; detected if absent.

    Raises
    ------
    InputError : the device is not supported here; the ranks' versions or plan books differ; a
        setting is wrong.
    CommunicationError : naming the ranks that did not arrive in time, or the store if it does not
        answer.
    """
    settings = CollectiveSettings.from_environment()
    rank, ranks, members = options.group_rank, options.group_size, options.global_ranks_in_group
    show_log(settings.log_level, members[rank] if members else rank)
    timeout_s = min(options.timeout.total_seconds(), settings.deadline_limit_s or LONGEST_S)
    book = load_book(settings.plan_book)
    joined, device = _join(options, settings, book, timeout_s)
    with ExitStack() as undoing:
        undoing.callback(joined.executor.close)  # the others learn that this rank has failed
        if members and list(members) != list(range(dist.get_world_size())):
            book = None  # it was made for the whole job, and metrics are its
            settings = replace(settings, metrics=None)
        else:
            book = _job_book(book, joined, settings, timeout_s)
        if rank == 0:
            hosts = _hosts(joined.config)
            log.info("group of %d ranks on %s: %s", ranks, hosts, describe_book(book))
        if kind is None:
            kind = HeadraceGroup if _alone(options.process_group, device) else HeadraceBackend
        connections = _Connections(joined=joined, settings=settings, timeout_s=timeout_s)
        group = _group(kind, options.group_id, connections, book)
        group.origin = Origin(
            store=options.store,
            device=device,
            members=tuple(members or range(ranks)),
            make=lambda part: create(part, follow, kind),
        )
        group.observed = settings.observed
        _live.add(group)
        if follow is not None:
            group.background = follow(joined.store, joined.executor, group.switch, book, settings)
        undoing.pop_all()
    return group


def _join(
    options: Any, settings: CollectiveSettings, book: "PlanBook | None", timeout_s: float
) -> tuple[Joined, str]:
    """Connect this rank with the others; returns the kind of device of the group, too."""
    rank, ranks = options.group_rank, options.group_size
    members = options.global_ranks_in_group or range(ranks)
    rendezvous = Rendezvous(options.store, rank, members, timeout_s)
    devices: list[str] = []

    def make(config: GroupConfig) -> Executor:
        devices[:] = [_device(options.store, rendezvous)]
        check_device(devices[0])
        return _executor(rank, ranks, config, settings)

    joined = rendezvous.join(
        settings,
        make,
        book_digest="" if book is None else book.digest,
        channels=channels(book),
        compares_calls=get_debug_level() == DebugLevel.DETAIL,
    )
    return joined, devices[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connections:
    """A rank's connections with the others of its group, and how to make more."""

    joined: Joined
    settings: CollectiveSettings
    timeout_s: float

    def connect_again(self, name: str, deadline_s: float) -> Executor:
        """Return another executor of this rank, connected with those of all ranks.

        Raises
        ------
        CommunicationError : at every rank, if one lacks file descriptors; naming the ranks that did
            not come in time.
        """
        first, config = self.joined.executor, self.joined.config
        lacking = shortage(first.ranks)
        if lacking:  # the others would wait for the address
            self._exchange(name, "", deadline_s, lacking)
        secret = hmac.digest(config.secret.encode(), name.encode(), "sha256").hex()
        executor = _executor(first.rank, first.ranks, replace(config, secret=secret), self.settings)
        try:
            addresses = self._exchange(name, executor.address, deadline_s)
            executor.connect(addresses, deadline_s)
            pace(executor, addresses, self.settings)
        except BaseException:
            executor.close()
            raise
        return executor

    def _exchange(self, name: str, mine: str, deadline_s: float, lacking: str = "") -> list[str]:
        """Return the addresses of all ranks from this rank's, which is empty if it has none."""
        addresses = allgather_addresses(self.joined.executor, name, mine, deadline_s)
        if "" in addresses:
            raise CommunicationError(
                f"rank {addresses.index('')} cannot make more connections for calls in "
                f"callbacks: {lacking or 'it has too few file descriptors (ulimit -n)'}"
            )
        return addresses


def _group(
    kind: type[HeadraceGroup | HeadraceBackend],
    group_id: str,
    connections: _Connections,
    book: "PlanBook | None",
) -> HeadraceGroup | HeadraceBackend:
    """Return the group, or backend of one device, that calls the executor by the book's plans."""
    joined = connections.joined
    config = joined.config
    callbacks = Callbacks(
        group_id,
        completion_threads.run,
        completion_threads.may_block,
        headrace_alone=kind is HeadraceGroup,
    )

    # torch itself compares the calls of a group with several backends
    compares = config.compares_calls and kind is HeadraceGroup

    def caller_on(connected: Executor) -> Caller:
        one_host = config.shared_memory and config.one_host
        chooser = Chooser(connected.ranks, book, one_host=one_host, channels=config.channels)
        caller = Caller(connected, chooser, connections.timeout_s, callbacks)
        if compares:
            rank, ranks = connected.rank, connected.ranks
            caller.comparison = CallComparison(rank, ranks, caller.gather_rows)
        return caller

    def connect_again(name: str, deadline_s: float) -> Caller:
        return caller_on(connections.connect_again(name, deadline_s))

    return kind(caller_on(joined.executor), group_id, joined.store, connect_again)


def _executor(rank: int, ranks: int, config: GroupConfig, settings: CollectiveSettings) -> Executor:
    """Return an executor that listens, for the group that was agreed on."""
    return Executor(
        rank,
        ranks,
        host=config.host,
        secret=config.secret,
        channels=config.channels,
        threads=settings.threads,
        shared_memory=config.shared_memory,
        tls=config.tls,
        completions=completion_threads.queue,
    )


def show_log(level: str, rank: int) -> None:
    """Write the log of "headrace" to stderr, from `level` on, with this process's rank.

    For applications without logging of their own: does nothing if logging has been set up.
    """
    logger = logging.getLogger("headrace")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"headrace[{rank}] %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else records appear twice if the application sets up logging later


def _device(store: Any, rendezvous: Rendezvous) -> str:
    """Return the device kind that torch makes this backend for; the first one if it has several.

    It shows only in the part of torch's store that the backend gets, which is named after it.
    """
    kinds = ["cpu", "cuda", *dist.Backend.default_device_backend_map]
    jobs = store.underlying_store
    return next(kind for kind in kinds if rendezvous.arrived_in(PrefixStore(f"{kind}/", jobs)))


def _alone(process_group: Any, device: str) -> bool:
    """Return whether the group that torch is making gets no other backend.

    Those before this one are registered with the group already. Those after it show only in the
    name of the group's main backend, which is one for an accelerator if there is any.
    """
    return (
        device == "cpu"
        and not process_group._device_types
        and process_group._get_backend_name() == "custom"  # as all are that are not torch's own
    )


def _job_book(
    loaded: "PlanBook | None", joined: Joined, settings: CollectiveSettings, timeout_s: float
) -> "PlanBook | None":
    """Return the plan book of a group of all ranks: the loaded one if it fits, or an automatic one.

    Called after connecting, as the addresses identify the hosts.
    """
    config, warn = joined.config, joined.executor.rank == 0
    book = fitting(loaded, config.rank_host, joined.addresses, warn=warn)
    if settings.plan_book is None and not config.one_host:
        return _automatic(joined, settings, timeout_s)
    return book


def _automatic(joined: Joined, settings: CollectiveSettings, timeout_s: float) -> "PlanBook | None":
    """Return a plan book for the network of the job; see `automatic.found_book`."""
    from headrace.collectives.run.bootstrap import HostId, found_book  # it loads all of planning

    hosts = [
        HostId(host_of(address), identity)
        for address, identity in zip(joined.addresses, joined.config.identities, strict=True)
    ]
    return found_book(joined.executor, joined.store, hosts, settings, timeout_s)


def _hosts(config: GroupConfig) -> str:
    count = len(set(config.rank_host))
    return "1 host" if count == 1 else f"{count} hosts"


def close_all() -> None:
    """Close groups that the script left open."""
    with ExitStack() as closing:  # the others of a group that fails, or is interrupted, too
        closing.callback(completion_threads.forget)
        for group in list(_live):
            closing.callback(group.shutdown, _LAST_CHANCE_S)
