"""The cache of profiles: found whatever the order, expired, invalidated, corrupt."""

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.collectives.measure import Profile, survey
from headrace.collectives.measure.cache import HostId, ProfileCache
from headrace.collectives.plan.book import build_book
from headrace.topology.arrange import arranged
from tests.collectives.measure.network import Network, shuffled_racks

TOPOLOGY, TRUTH = shuffled_racks((3, 2), 4)
ADDRESSES = tuple(f"10.0.0.{rank}" for rank in range(5))
HOSTS = tuple(HostId(address, f"boot-{address}") for address in ADDRESSES)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return survey(Network(TOPOLOGY, noise=0.02), ADDRESSES)


@pytest.fixture
def cache(tmp_path: Path) -> ProfileCache:
    return ProfileCache(tmp_path / "cache")


def test_what_was_kept_is_found(cache: ProfileCache, profile: Profile) -> None:
    assert cache.find(HOSTS) is None
    key = cache.save(profile, HOSTS)
    found_key, found = cache.find(HOSTS) or pytest.fail("nothing found")
    assert found_key == key
    assert found.digest == profile.digest


@pytest.mark.parametrize("seed", range(5))
def test_another_order_of_hosts_finds_the_same_network(
    cache: ProfileCache, profile: Profile, seed: int
) -> None:
    key = cache.save(profile, HOSTS)
    order = np.random.default_rng(seed).permutation(5).tolist()
    found_key, found = cache.find([HOSTS[rank] for rank in order]) or pytest.fail("nothing found")
    assert found_key == key
    compare(found, profile, order)


@pytest.mark.parametrize("left", [[0, 1, 2, 3], [4, 2, 0], [3, 1]])
def test_survivors_find_the_network_of_all(
    cache: ProfileCache, profile: Profile, left: list[int]
) -> None:
    cache.save(profile, HOSTS)
    _, found = cache.find([HOSTS[rank] for rank in left]) or pytest.fail("nothing found")
    compare(found, profile, left)


def compare(found: Profile, whole: Profile, order: list[int]) -> None:
    """Every link, capacity, group and row of `found` is that of `whole` under `order`."""
    new, old = found.topology, whole.topology
    assert new.hosts == tuple(old.hosts[rank] for rank in order)
    ends = [(link.src, link.dst) for link in new.links]
    assert ends == sorted(ends)
    assert len(ends) == len(order) * (len(order) - 1)
    for link in new.links:
        was = old.links[old.link_index[order[link.src], order[link.dst]]]
        assert (link.alpha_us, link.beta_us_per_mb) == (was.alpha_us, was.beta_us_per_mb)
    known = {s.name: s for s in old.shared}
    for shared in new.shared:
        was = known[shared.name]
        mine = {(order[new.links[i].src], order[new.links[i].dst]) for i in shared.links}
        theirs = {(old.links[i].src, old.links[i].dst) for i in was.links}
        assert mine == {pair for pair in theirs if set(pair) <= set(order)}
        assert shared.beta_us_per_mb == was.beta_us_per_mb
    groups = {frozenset(order[rank] for rank in group) for group in found.groups}
    assert groups == {frozenset(g) & set(order) for g in whole.groups if set(g) & set(order)}
    for column in ("bytes_per_s", "min_rtt_us"):
        expected = whole.matrix(column)[np.ix_(order, order)]
        np.testing.assert_array_equal(found.matrix(column), expected)


def test_several_ranks_of_a_host_are_told_apart_by_their_number() -> None:
    hosts = ("a", "b", "a")
    topology = replace(
        TOPOLOGY,
        hosts=("a", "b"),
        rank_host=(0, 1, 0),
        links=tuple(link for link in TOPOLOGY.links if max(link.src, link.dst) < 3),
        shared=(),
    )
    profile = survey(Network(topology), hosts)
    assert arranged(profile, ["a", "b"]) is not None
    assert arranged(profile, ["b", "b"]) is None
    assert arranged(profile, ["a", "c"]) is None
    turned = arranged(profile, ["b", "a", "a"])
    assert turned is not None
    assert turned.topology.rank_host == (0, 1, 1)


def test_it_does_not_serve_other_hosts_nor_more_of_them(
    cache: ProfileCache, profile: Profile
) -> None:
    cache.save(profile, HOSTS)
    assert cache.find([*HOSTS, HostId("10.0.0.9", "boot")]) is None
    assert cache.find([*HOSTS, HOSTS[0]]) is None
    rebooted = [replace(HOSTS[0], identity="another boot"), *HOSTS[1:]]
    assert cache.find(rebooted) is None


def test_it_expires(cache: ProfileCache, profile: Profile) -> None:
    cache.save(profile, HOSTS)
    end = profile.measured_at + profile.valid_for_s
    assert cache.find(HOSTS, end - 1) is not None
    assert cache.find(HOSTS, end + 1) is None
    assert cache.find(HOSTS, profile.measured_at - 1000) is None  # from a clock that was wrong


def test_it_can_be_invalidated(
    cache: ProfileCache, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    key = cache.save(profile, HOSTS)
    with caplog.at_level(logging.INFO):
        assert cache.invalidate(key, "steps take twice as long as predicted")
    assert "twice as long" in caplog.text
    assert cache.find(HOSTS) is None
    assert not cache.invalidate(key, "again")
    assert not cache.invalidate("../../x", "no key")


def test_what_is_corrupt_is_passed_over_with_a_warning(
    cache: ProfileCache, profile: Profile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.save(profile, HOSTS)
    [path] = (tmp_path / "cache" / "profiles").iterdir()
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for cut in [0, 1, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert cache.find(HOSTS) is None
    for place in random.integers(0, len(whole), 20).tolist():
        path.write_bytes(whole[:place] + b"\x07" + whole[place + 1 :])
        cache.find(HOSTS)  # whatever it finds, it raises nothing
    assert "skipped a profile in the cache" in caplog.text
    cache.save(profile, HOSTS)
    assert cache.find(HOSTS) is not None


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache = ProfileCache(tmp_path / "file")
    assert cache.save(profile, HOSTS)
    assert "cannot be cached" in caplog.text
    assert cache.find(HOSTS) is None


def test_a_folder_that_cannot_be_looked_into_has_nothing(
    tmp_path: Path, profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    """That of another user's home: rank 0 failed, and the others waited for its plans."""
    cache = ProfileCache(tmp_path / ("long" * 99))  # an error that root gets, too
    assert cache.find(HOSTS) is None
    assert cache.find_book(profile) is None
    assert "skipped a profile in the cache" in caplog.text
    assert cache.save(profile, HOSTS)
    assert "cannot be cached" in caplog.text


def test_without_a_folder_nothing_is_kept_and_a_warning_says_so(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    """A user without a home: jobs failed at their start."""
    cache = ProfileCache(None)
    key = cache.save(profile, HOSTS)
    cache.save_book(profile, build_book(profile.topology, groups=profile.groups, sizes=[1 << 20]))
    assert "cannot be cached, the next job will measure again: this user has no home" in caplog.text
    assert cache.find(HOSTS) is None
    assert cache.find_book(profile) is None
    assert not cache.invalidate(key, "any")


def test_books_are_kept_by_what_they_were_made_of(
    cache: ProfileCache, profile: Profile, tmp_path: Path
) -> None:
    book = build_book(profile.topology, groups=profile.groups, sizes=[1 << 20])
    assert cache.find_book(profile) is None
    cache.save_book(profile, book)
    kept = cache.find_book(profile)
    assert kept is not None
    assert kept.digest == book.digest
    other = arranged(profile, ADDRESSES[::-1])
    assert other is not None
    assert cache.find_book(other) is None
    [path] = (tmp_path / "cache" / "books").iterdir()
    path.write_bytes(b"nothing")
    assert cache.find_book(profile) is None


def aged_files(folder: Path, suffix: str, count: int) -> Path:
    """Make a folder of empty files, the first of which is the newest."""
    folder.mkdir(parents=True)
    for age in range(count):
        (folder / f"{age}{suffix}").touch()
        os.utime(folder / f"{age}{suffix}", (1000 - age, 1000 - age))
    return folder


def test_old_profiles_go(cache: ProfileCache, profile: Profile, tmp_path: Path) -> None:
    """Hosts in a cloud have a new name for every job: the folder grew without end."""
    folder = aged_files(tmp_path / "cache" / "profiles", ".profile", 80)
    key = cache.save(profile, HOSTS)
    assert len(list(folder.iterdir())) == 64
    assert (folder / f"{key}.profile").exists()
    assert (folder / "0.profile").exists()
    assert not (folder / "79.profile").exists()


def test_old_books_go(cache: ProfileCache, profile: Profile, tmp_path: Path) -> None:
    folder = aged_files(tmp_path / "cache" / "books", ".book", 30)
    cache.save_book(profile, build_book(profile.topology, sizes=[1024], collectives=["allreduce"]))
    assert len(list(folder.iterdir())) == 16
    assert (folder / "0.book").exists()
    assert not (folder / "29.book").exists()
