"""Measuring and planning at the start of a job without a plan book.

Rank 0 takes a profile of the job's hosts from its cache, or all ranks measure over the connections
that were just made; it plans, and publishes the plan book to the others through the store.
"""

import logging
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import headrace.artifact as artifact_io
from headrace.collectives.demand import Collective
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.cache import HostId, ProfileCache
from headrace.collectives.measure.embed.groups import aggregation_groups
from headrace.collectives.measure.survey import measure_ranks
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, HeadraceError
from headrace.executor import Executor
from headrace.job.store import answering, in_parts, wait_for
from headrace.topology.profile import Profile
from headrace.topology.summary import in_words

EFFORT = ProbeEffort(budget_s=10.0)
"""Budget of measuring at the start of a job."""

FIRST = (
    Collective.ALLREDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALLGATHER,
    Collective.BROADCAST,
)
"""Collectives of training, in the order in which they are planned."""

PLANNING_S = 4.0
"""Time in seconds after which no further collective is planned."""

_SIZES = tuple(4**k << 10 for k in range(9))  # 1 KiB to 64 MiB
_ROOTED_FROM = 9  # ranks; with fewer, books have plans for every root, which takes longer
_PROFILE_KEY = "profile_key"

_books: dict[tuple[HostId, ...], PlanBook | None] = {}
"""Rank 0's plan books by the hosts of a group: later groups of a job on them measure no more,
whatever the settings, and where no profile can be cached, or the cached one has expired."""

log = logging.getLogger(__name__)


def found_book(
    executor: Executor,
    store: Any,
    hosts: Sequence[HostId],
    settings: CollectiveSettings,
    timeout_s: float,
) -> PlanBook | None:
    """Return a plan book for the network that the job runs on; collective: every rank calls it.

    Parameters
    ----------
    executor : connected, and idle.
    store : the group's part of torch's store.
    hosts : every rank's host.
    settings : rank 0's `measure` and `cache` apply.
    timeout_s : longest wait for rank 0, apart from measuring itself.

    Returns
    -------
    PlanBook | None
        The same at every rank; None if rank 0's settings disable it, or planning failed.

    Raises
    ------
    CommunicationError : naming the host that was lost while measuring; rank 0 did not answer.
    """
    first = executor.rank == 0
    cache = ProfileCache(settings.cache_folder)
    planned = tuple(hosts) in _books
    profile_of_hosts = None
    if first and settings.measure == "auto" and not planned:
        profile_of_hosts = cache.find(hosts)
    if first:
        must = settings.measure != "off" and not planned and profile_of_hosts is None
        store.set("measure/begin", "measure" if must else settings.measure)
    begin = _read_key(store, "measure/begin", timeout_s)
    if begin == b"off":
        return None
    profile = None
    if begin == b"measure":
        if first:
            log.info("measuring the network, for at most about %.0f s", EFFORT.budget_s)
        profile = measure_ranks(executor, [host.address for host in hosts], effort=EFFORT)
    if not first:
        return _published_book(store, timeout_s)
    book = _books.get(tuple(hosts))
    try:
        if profile is not None:
            profile_of_hosts = (cache.save(profile, hosts), profile)
        if profile_of_hosts is not None:
            book = _planned(cache, *profile_of_hosts, fresh=profile is not None)
            _books[tuple(hosts)] = book
    finally:  # whatever keeps it from being made: the others wait
        _publish_book(store, book)
    return book


def invalidate(book: PlanBook, settings: CollectiveSettings, reason: str) -> bool:
    """Invalidate the cached profile that `book` was made from, as the network has changed.

    Returns whether there was one; a book of the user's own has none. For rank 0, which has the
    cache.
    """
    key = book.provenance.get(_PROFILE_KEY)
    for hosts, earlier in list(_books.items()):
        if earlier is not None and earlier.provenance.get(_PROFILE_KEY) == key:
            del _books[hosts]
    return isinstance(key, str) and ProfileCache(settings.cache_folder).invalidate(key, reason)


def quick_book(profile: Profile) -> PlanBook:
    """Plan the collectives of training from templates, as many as fit into `PLANNING_S`."""
    started = time.monotonic()
    topology, groups = profile.topology, aggregation_groups(profile)
    books: list[PlanBook] = []
    for collective in FIRST:
        if books and time.monotonic() - started > PLANNING_S:
            break
        if collective is Collective.BROADCAST and topology.ranks < _ROOTED_FROM:
            continue  # called once at the start of a job: a template suffices
        books.append(build_book(topology, groups=groups, collectives=[collective], sizes=_SIZES))
    entries = [entry for book in books for entry in book.entries]
    return replace(
        books[0], entries=tuple(sorted(entries, key=lambda e: (e.collective, e.root, e.from_bytes)))
    )


def _planned(cache: ProfileCache, key: str, profile: Profile, *, fresh: bool) -> PlanBook | None:
    """Return rank 0's plan book; None, with a warning, if planning fails."""
    started = time.monotonic()
    book = cache.find_book(profile)
    try:
        if book is None:
            book = quick_book(profile)
            cache.save_book(profile, book)
    except HeadraceError as error:
        log.warning("no plans for the measured network, the job uses templates: %s", error)
        return None
    left_s = profile.measured_at + profile.valid_for_s - time.time()
    log.info(
        "network %s: %s; the job uses %d plans (made or read in %.1f s); the profile is valid for "
        "another %.0f min",
        f"measured in {profile.took_s:.1f} s" if fresh else "known from an earlier job",
        in_words(profile),
        len(book.entries),
        time.monotonic() - started,
        left_s / 60,
    )
    for cut in profile.provenance.get("cut", ()):
        log.info("measuring was cut short: %s", cut)
    return replace(book, provenance={**book.provenance, _PROFILE_KEY: key})


def _read_key(store: Any, key: str, timeout_s: float) -> bytes:
    what = "waiting for rank 0's plans"
    if not wait_for(store, [key], timeout_s, what):
        raise CommunicationError(f"{what}: rank 0 published none within {timeout_s:g} s")
    with answering(store, what):
        return bytes(store.get(key))


def _publish_book(store: Any, book: PlanBook | None) -> None:
    """Publish a book, in as many parts as it needs; without one in none."""
    parts = in_parts(zlib.compress(book.to_artifact().to_bytes(), 1)) if book else []
    for index, part in enumerate(parts):
        store.set(f"measure/book/{index}", part)
    store.set("measure/book", str(len(parts)))


def _published_book(store: Any, timeout_s: float) -> PlanBook | None:
    """Wait for the book that rank 0 publishes, and return it; None: it has none."""
    count = int(_read_key(store, "measure/book", timeout_s))
    parts = [_read_key(store, f"measure/book/{index}", timeout_s) for index in range(count)]
    if not parts:
        return None
    raw = zlib.decompress(b"".join(parts))
    return PlanBook.from_artifact(artifact_io.from_bytes(raw, kind="plan-book"))
