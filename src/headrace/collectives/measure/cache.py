"""Cache of measured profiles, and of plan books made of them, on rank 0's disk.

The key of a profile is a digest of its hosts: each one's address, an identity that tells its
network stack from others with that address, and its number of ranks, in any order. It is valid
until it expires or is invalidated. Unreadable files are skipped.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import headrace
from headrace.artifact import Artifact
from headrace.cache import cache_key, keep_newest, newest_files, read_cached, write_cached
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.plan.verify import VERIFIER_VERSION
from headrace.topology.arrange import arranged
from headrace.topology.profile import Profile

log = logging.getLogger(__name__)

_MOST_OTHERS = 16  # newest files searched for one that covers these hosts and more
_MOST_PROFILES = 64  # kept: hosts that boot have a new name, and their old profiles are of no use
_CLOCKS_DIFFER_S = 60.0
_NOWHERE = Path(os.devnull)  # no folder: nothing is found there
_PROFILE, _BOOK = ".profile", ".book"
_CONSEQUENCE = "the next job will measure again"


@dataclass(frozen=True, slots=True, order=True)
class HostId:
    """Identity of a host: the address of its ranks, and an identity that lasts until it boots."""

    address: str
    identity: str


class ProfileCache:
    """The cache in one folder.

    Parameters
    ----------
    folder : made at the first use; profiles are in ``profiles``, plan books in ``books``. None:
        no storage; nothing is found, and saving warns.
    """

    def __init__(self, folder: Path | None) -> None:
        self._stores = folder is not None
        self._profiles, self._books = (
            (folder or _NOWHERE) / part for part in ("profiles", "books")
        )

    def find(self, hosts: Sequence[HostId], now: float | None = None) -> tuple[str, Profile] | None:
        """Return the key and the profile of the hosts of all ranks (``hosts[rank]``).

        The profile is arranged for these ranks. One of more hosts is found too, by jobs that
        continue without some of them.
        """
        now = time.time() if now is None else now
        newest = newest_files(self._profiles, _PROFILE)
        newest_keys = [path.stem for path in newest[:_MOST_OTHERS]]
        for key in dict.fromkeys([_key(hosts), *newest_keys]):
            profile = self._load(key, hosts, now)
            if profile is not None:
                return key, profile
        return None

    def save(self, profile: Profile, hosts: Sequence[HostId]) -> str:
        """Keep a profile whose rank r runs on ``hosts[r]``, and return its key; delete old ones.

        A failure is logged as a warning.
        """
        key = _key(hosts)
        identities = {host.address: host.identity for host in hosts}
        marked = replace(profile, provenance={**profile.provenance, "identities": identities})
        self._write(self._profile_path(key), marked.to_artifact())
        keep_newest(self._profiles, _PROFILE, _MOST_PROFILES)
        return key

    def invalidate(self, key: str, reason: str) -> bool:
        """Delete the profile with this key; returns whether there was one."""
        path = self._profile_path(Path(key).name)
        try:
            path.unlink()
        except OSError:
            return False
        log.info("deleted the profile %s: %s", path, reason)
        return True

    def find_book(self, profile: Profile) -> PlanBook | None:
        """Return the plan book that was made of a profile, proven again."""
        return read_cached(
            self._book_path(profile), PlanBook.load, "skipped a plan book in the cache"
        )

    def save_book(self, profile: Profile, book: PlanBook) -> None:
        """Keep the plan book that was made of a profile; delete those of old profiles."""
        self._write(self._book_path(profile), book.to_artifact())
        keep_newest(self._books, _BOOK, _MOST_OTHERS)

    def _load(self, key: str, hosts: Sequence[HostId], now: float) -> Profile | None:
        profile = read_cached(
            self._profile_path(key), Profile.load, "skipped a profile in the cache"
        )
        if profile is None or profile.expired(now) or profile.measured_at > now + _CLOCKS_DIFFER_S:
            return None
        identities = profile.provenance.get("identities")
        if not isinstance(identities, dict) or any(
            identities.get(host.address) != host.identity  # pyright: ignore[reportUnknownMemberType]
            for host in hosts
        ):
            return None
        return arranged(profile, [host.address for host in hosts])

    def _profile_path(self, key: str) -> Path:
        return self._profiles / f"{key}{_PROFILE}"

    def _book_path(self, profile: Profile) -> Path:
        parts = [
            profile.topology.digest,
            [list(group) for group in profile.groups],
            headrace.__version__,
            VERIFIER_VERSION,
        ]
        return self._books / f"{cache_key(parts)}{_BOOK}"

    def _write(self, path: Path, artifact: Artifact) -> None:
        if self._stores:
            write_cached(path, artifact, _CONSEQUENCE)
        else:
            log.warning(
                "cannot be cached, %s: this user has no home folder; set HEADRACE_CACHE to a "
                "folder to keep it in",
                _CONSEQUENCE,
            )


def _key(hosts: Sequence[HostId]) -> str:
    """Return a key that depends on the hosts and their numbers of ranks, in any order."""
    return cache_key(sorted([h.address, h.identity, n] for h, n in Counter(hosts).items()))
