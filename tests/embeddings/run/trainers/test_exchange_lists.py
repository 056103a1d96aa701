"""Lists of exchanges, on caches that hold a version of each row instead of numbers."""

from collections import defaultdict
from itertools import chain

import numpy as np
from hypothesis import given, settings

from headrace.embeddings.run.batches import GroupBatch
from headrace.embeddings.run.trainers.exchange_lists import ExchangeLists, PeerRows, exchange_lists
from tests.embeddings.run.dispatch import Job, decisions, group_batches, jobs


def part(listed: PeerRows, trainer: int) -> np.ndarray:
    start = listed.ends[trainer - 1] if trainer else 0
    return listed.rows[start : listed.ends[trainer]]


class Versions:
    """Versions of rows at the servers and in every trainer's cache, by slot."""

    def __init__(self, trainers: int) -> None:
        self.trainers = range(trainers)
        self.newest: defaultdict[int, int] = defaultdict(int)  # by slot, of the row that has it
        self.caches: list[dict[int, int]] = [{} for _ in self.trainers]

    def check_uses(self, batches: list[GroupBatch]) -> None:
        for batch, cache in zip(batches, self.caches, strict=True):
            for slot in batch.slots[: batch.used].tolist():
                assert cache[slot] == self.newest[slot]

    def exchange(self, batches: list[GroupBatch], lists: list[ExchangeLists]) -> None:
        """Move versions by all trainers' lists; every list of two trainers has the same rows."""
        for owner in self.trainers:
            updated = lists[owner].updated
            slots = batches[owner].slots[updated]
            users = np.zeros(len(updated), np.uint32)
            own_use = updated < batches[owner].used
            users[own_use] |= np.uint32(1 << owner)
            for user in self.trainers:
                received = part(lists[owner].gradients_received, user)
                sent = part(lists[user].gradients_sent, owner)
                assert (sent < batches[user].used).all()
                assert slots[received].tolist() == batches[user].slots[sent].tolist()
                users[received] |= np.uint32(1 << user)
            assert users.tolist() == batches[owner].users[updated].tolist()
            for slot in slots.tolist():
                self.newest[slot] += 1
                self.caches[owner][slot] = self.newest[slot]
        for owner in self.trainers:
            slots = batches[owner].slots[lists[owner].updated]
            for receiver in self.trainers:
                sent = slots[part(lists[owner].rows_sent, receiver)].tolist()
                received = part(lists[receiver].rows_received, owner)
                assert sent == batches[receiver].slots[received].tolist()
                for slot in sent:
                    self.caches[receiver][slot] = self.caches[owner][slot]


@settings(max_examples=150, deadline=None)
@given(job=jobs())
def test_every_user_has_the_newest_version(job: Job) -> None:
    """Rows are fetched as early as they may be, and evicted ones are in no cache afterwards."""
    decided = decisions(job)
    parts = [
        group_batches(decision, batch, job.trainers)
        for decision, batch in zip(decided, job.batches, strict=True)
    ]
    updates: defaultdict[tuple[int, int], int] = defaultdict(int)
    stored: defaultdict[tuple[int, int], int] = defaultdict(int)
    versions = Versions(job.trainers)

    def fetch(after: int) -> None:
        for decision, batches in zip(decided, parts, strict=True):
            if max(decision.after, -1) != after:
                continue
            for batch, cache in zip(batches, versions.caches, strict=True):
                start = 0
                for table, end in enumerate(batch.fetched.ends.tolist()):
                    for place in range(start, end):
                        slot = int(batch.fetched.slots[place])
                        row = (table, int(batch.fetched.ids[place]))
                        cache[slot] = versions.newest[slot] = stored[row]
                    start = end

    fetch(-1)
    for number, batches in enumerate(parts):
        versions.check_uses(batches)
        lists = [exchange_lists(batch, t, job.trainers) for t, batch in enumerate(batches)]
        versions.exchange(batches, [critical for critical, _ in lists])
        versions.exchange(batches, [delayed for _, delayed in lists])
        for table, trainers in enumerate(job.batches[number]):
            for row in {*chain.from_iterable(trainers)}:
                updates[table, row] += 1
        for batch, cache in zip(batches, versions.caches, strict=True):
            start = 0
            for table, end in enumerate(batch.evicted.ends.tolist()):
                for place in range(start, end):
                    slot, row = int(batch.evicted.slots[place]), int(batch.evicted.ids[place])
                    assert cache[slot] == updates[table, row]
                    stored[table, row] = cache[slot]
                    for cached in versions.caches:
                        cached.pop(slot, None)
                start = end
        fetch(number)
    assert stored == updates
