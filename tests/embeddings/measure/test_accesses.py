"""Measured accesses, against counts over the batches themselves."""

import numpy as np
import pytest

from headrace import _native
from headrace.embeddings import EmbeddingError, EmbeddingProfile, Examples, Synchronisation
from headrace.embeddings.measure.accesses import measure_accesses

TRAINERS = 3
SIZE = 6


def job(count: int, seed: int = 0, rows: int = 12) -> list[Examples]:
    generator = np.random.default_rng(seed)
    return [
        Examples(
            labels=None,
            dense=np.zeros((SIZE, 1), np.float32),
            ids=(generator.integers(0, rows, SIZE), generator.integers(0, 2, SIZE)),
            lengths=(None, None),
        )
        for _ in range(count)
    ]


def measured(batches: list[Examples], lookahead: int, most: int = 1000) -> EmbeddingProfile:
    return measure_accesses(
        iter(batches), trainers=TRAINERS, lookahead=lookahead, most_batches=most
    )


Uses = dict[tuple[int, int], set[int]]


def uses(batch: Examples) -> Uses:
    """Trainers of every row."""
    users: Uses = {}
    for table, ids in enumerate(batch.ids):
        for example, row in enumerate(ids):
            users.setdefault((table, int(row)), set()).add(example * TRAINERS // SIZE)
    return users


@pytest.mark.parametrize(("count", "lookahead"), [(30, 4), (9, 4), (8, 8), (4, 50)])
def test_reuse_and_transfers_are_those_of_the_batches(count: int, lookahead: int) -> None:
    batches = job(count)
    profile = measured(batches, lookahead)
    cut = count < lookahead
    decided = count // 2 if cut else count - lookahead + 1
    lookahead = count - count // 2 if cut else lookahead
    assert profile.lookahead == lookahead
    users = [uses(batch) for batch in batches]
    reuse = np.zeros(lookahead)
    distinct = rows = lrpp = lrpp_next = targeted = targeted_next = 0
    for x in range(decided):
        for row, trainers in users[x].items():
            window = [users[y].get(row, set()) for y in range(x + 1, x + lookahead)]
            gap = next((g for g, later in enumerate(window, 1) if later), 0)
            reuse[gap] += 1
            rows += 1
            distinct += len(trainers)
            shared = len(trainers.union(*window)) > 1
            lrpp += shared
            lrpp_next += shared and gap == 1
            later = window[gap - 1] if gap else set[int]()
            moved = len(trainers) - 1 + len(later) - bool(trainers & later)
            targeted += moved
            targeted_next += moved * (gap == 1)
    transfers = profile.transfers
    for name in (Synchronisation.POOLED, Synchronisation.DISTINCT, Synchronisation.REPLICATED):
        assert transfers[name].critical_rows == transfers[name].rows
    assert profile.reuse.rows == pytest.approx(reuse / decided)
    assert transfers[Synchronisation.DISTINCT].rows == pytest.approx(distinct * 2 * 2 / 3 / decided)
    assert transfers[Synchronisation.REPLICATED].rows == pytest.approx(4 * rows / decided)
    assert transfers[Synchronisation.POOLED].rows == pytest.approx(2 * 2 / 3 * SIZE * 2)
    assert transfers[Synchronisation.TARGETED].rows == pytest.approx(targeted / decided)
    critical = transfers[Synchronisation.TARGETED].critical_rows
    assert critical == pytest.approx(targeted_next / decided)
    if not cut:  # else these decisions look as far as the last batch
        assert transfers[Synchronisation.LRPP].rows == pytest.approx(4 * lrpp / decided)
        assert transfers[Synchronisation.LRPP].critical_rows == pytest.approx(
            4 * lrpp_next / decided
        )


def test_fetches_and_the_cache_follow_from_reuse() -> None:
    """A cache of the measured lookahead fetches and holds as many rows, once it is warm."""
    batches, lookahead = job(400, rows=60), 5
    profile = measured(batches, lookahead)
    window = _native.Lookahead(
        [0, 0], trainers=TRAINERS, lookahead=lookahead, prefetch=1, slots=1000
    )
    fetched: list[int] = []
    resident: list[int] = []
    for batch in batches:
        window.push(list(batch.ids), batch.id_ends(TRAINERS))
        if window.ready:
            before = window.resident
            fetched.append(int(window.pop().fetched.sum()))
            resident.append(before + fetched[-1])
    assert profile.fetched(lookahead) == pytest.approx(np.mean(fetched[20:]), rel=0.03)
    assert profile.resident(lookahead) == pytest.approx(np.mean(resident[20:]), rel=0.03)
    assert profile.fetched(1) == profile.rows == profile.resident(1)
    with pytest.raises(EmbeddingError, match="lookahead is 6, needs 1 to 5"):
        profile.fetched(6)


def test_tables_are_counted() -> None:
    profile = measured(job(40), 5)
    rows = profile.tables[0]
    ids = np.concatenate([batch.ids[0] for batch in job(40)])
    counts = np.bincount(ids)
    assert (rows.accesses, rows.rows) == (len(ids), (counts > 0).sum())
    assert rows.rows_once == (counts == 1).sum()
    assert rows.top_accesses == counts.max()
    assert profile.counted == 40 * SIZE


def test_a_short_batch_ends_the_measurement() -> None:
    batches = job(10)
    profile = measured([*batches, batches[0][:2], *batches], 3)
    assert profile.batches == 10
    assert measured(batches, 3, most=7).batches == 7


def test_a_batch_can_have_no_ids() -> None:
    """Of bags that are all empty."""
    lengths = np.array([1, 0, 2, 0, 0, 1])
    bags = [
        Examples(
            labels=None,
            dense=np.zeros((SIZE, 1), np.float32),
            ids=(np.arange(counts.sum()),),
            lengths=(counts,),
        )
        for counts in (0 * lengths, lengths, lengths, lengths, lengths)
    ]
    assert measured(bags, 2).example_bytes.ids == pytest.approx(4 * 4 * 4 / 5)
    with pytest.raises(EmbeddingError, match="none of 3 batches that were counted has an id"):
        measured([bags[0]] * 4, 2)  # it ended in a division by zero as the profile was shown


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(EmbeddingError, match="the examples are 3 batches, needs four or more"):
        measured(job(3), 2)
    with pytest.raises(EmbeddingError, match="the examples are 0 batches"):
        measured([], 2)
    with pytest.raises(EmbeddingError, match="lookahead is 1, needs 2"):
        measured(job(5), 1)
    with pytest.raises(EmbeddingError, match="trainers is 33"):
        measure_accesses(iter(job(5)), trainers=33, lookahead=2, most_batches=5)
