"""Rows without gradients of others are updated first; messages keep their order."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.embeddings.run.trainers.cache import RowCache
from headrace.embeddings.run.trainers.exchange_lists import ExchangeLists, PeerRows
from headrace.embeddings.run.trainers.optimizers import SGDUpdate
from headrace.embeddings.run.trainers.updated_rows import UpdatedRows, update_order
from headrace.embeddings.tables import TableGroup

EMPTY = PeerRows(rows=np.empty(0, np.int64), ends=(0, 0, 0))


def lists_of(updated: list[int], received: list[int], sent: list[int]) -> ExchangeLists:
    """Lists of trainer 0 of 3; trainer 1 sends gradients, trainer 2 receives rows."""
    return ExchangeLists(
        updated=np.array(updated, np.int64),
        gradients_sent=EMPTY,
        gradients_received=PeerRows(
            rows=np.array(received, np.int64), ends=(0, len(received), len(received))
        ),
        rows_sent=PeerRows(rows=np.array(sent, np.int64), ends=(0, 0, len(sent))),
        rows_received=EMPTY,
    )


@given(st.data())
def test_rows_are_updated_by_all_gradients_and_sent_in_the_order_of_the_lists(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(0, 6))
    updated = data.draw(st.permutations(range(count)))
    received = data.draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
    sent = data.draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
    order = update_order(lists_of(list(updated), received, sent))
    assert order.alone == count - len(received)

    cache = RowCache(TableGroup(tables=(0,), dim=1), 10, torch.device("cpu"))
    cache.rows[:, 0] = torch.arange(10)
    slots = torch.from_numpy(order.updated) + 2
    own = 10.0 * torch.arange(count)[:, None]
    rows = UpdatedRows(cache, own, torch.from_numpy(order.updated), slots, order.alone)
    update = SGDUpdate(learning_rate=1.0)
    rows.update_alone(update, 1)
    others = 100.0 * (1 + torch.arange(len(received)))[:, None]
    numbers = torch.from_numpy(order.gradients_received.rows)
    rows.update_shared(others, numbers, order.gradients_received.ends, 0, update, 1)
    rows.write_shared()

    expected = torch.arange(10.0)
    for row in range(count):
        expected[row + 2] -= 10.0 * row
    for place, number in enumerate(received):
        expected[updated[number] + 2] -= 100.0 * (1 + place)
    assert torch.equal(cache.rows[:, 0], expected)
    messages = rows.rows[torch.from_numpy(order.rows_sent.rows), 0]
    assert torch.equal(messages, expected[[updated[number] + 2 for number in sent]])
