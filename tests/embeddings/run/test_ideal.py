"""The ideal job: parts of batches without rows that move."""

import numpy as np

from headrace.embeddings.run.cacher.cacher import CacherOptions, dispatched
from headrace.embeddings.run.ideal import without_transfers
from headrace.embeddings.run.trainers.exchange_lists import exchange_lists
from headrace.embeddings.tables import table_groups
from tests.embeddings.run.jobs import TABLES, id_batches


def test_no_rows_move_and_all_that_are_used_are_updated() -> None:
    options = CacherOptions(
        tables=TABLES,
        groups=table_groups(TABLES),
        slots=(50, 9),
        trainers=3,
        lookahead=2,
        commit_every=2,
    )
    moved = 0
    for parts in dispatched(id_batches(6), options):
        for trainer, (part, ideal) in enumerate(zip(parts, without_transfers(parts), strict=True)):
            for group, alone in zip(part.groups, ideal.groups, strict=True):
                moved += len(group.fetched.ids) + len(group.evicted.ids) + len(group.dirty.ids)
                for rows in (alone.fetched, alone.evicted, alone.dirty):
                    assert len(rows.ids) == len(rows.slots) == rows.ends[-1] == 0
                assert np.array_equal(alone.slots, group.slots[: group.used])
                assert np.array_equal(alone.rows_of_ids, group.rows_of_ids)
                lists = exchange_lists(alone, trainer, 3)
                for of_exchange in lists:
                    assert of_exchange.gradients_sent.ends[-1] == 0
                    assert of_exchange.rows_received.ends[-1] == 0
                assert sum(len(of_exchange.updated) for of_exchange in lists) == group.used
    assert moved > 0
