"""The native lookahead from Python: columns, and arguments that are refused."""

from typing import Any

import numpy as np
import pytest

from headrace import _native


def window(lookahead: int = 2, slots: int = 9) -> _native.Lookahead:
    return _native.Lookahead([10, 0], trainers=2, lookahead=lookahead, prefetch=1, slots=slots)


def push(lookahead: _native.Lookahead, *tables: list[int]) -> None:
    ids = [np.array(table, np.int64) for table in tables]
    lookahead.push(ids, np.array([[len(table) // 2, len(table)] for table in tables], np.int64))


def test_a_decision_has_columns_of_rows_evictions_and_ids() -> None:
    lookahead = window()
    push(lookahead, [3, 4], [7, 7])
    assert not lookahead.ready
    push(lookahead, [4, 4], [1 << 40, 7])
    decision = lookahead.pop()
    assert (decision.batch, decision.after, lookahead.resident) == (0, -1, 2)
    assert decision.first.tolist() == [0, 2, 3]
    assert decision.ids.tolist() == [3, 4, 7]
    assert decision.users.tolist() == [1, 2, 3]
    assert decision.next_users.tolist() == [0, 3, 2]
    assert decision.owner.tolist() == [0, 1, 1]
    assert decision.next.tolist() == [-1, 1, 1]
    assert decision.fetched.tolist() == [1, 1, 1]
    assert decision.shared.tolist() == [0, 1, 1]
    assert decision.evicted_ids.tolist() == [3]
    assert decision.evicted_first.tolist() == [0, 1, 1]
    slots = decision.slots
    assert decision.id_slots.tolist() == [slots[0], slots[1], slots[2], slots[2]]
    del decision, lookahead
    assert slots.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        slots[0] = 1


def test_the_last_batches_are_decided_when_no_more_follow() -> None:
    lookahead = window(lookahead=5)
    push(lookahead, [1, 2], [])
    push(lookahead, [1, 2], [])
    lookahead.finish()
    assert [lookahead.pop().batch for _ in range(2)] == [0, 1]
    assert not lookahead.ready
    with pytest.raises(RuntimeError, match="no batch can be decided yet"):
        lookahead.pop()
    with pytest.raises(RuntimeError, match="after the last one"):
        push(lookahead, [], [])


def test_wrong_arguments_are_refused() -> None:
    lookahead = window()
    with pytest.raises(ValueError, match="table 0: id 10 at place 1, needs 0 to 9"):
        push(lookahead, [1, 10], [])
    with pytest.raises(ValueError, match="table 0: the ends of the trainers' ids"):
        lookahead.push([np.arange(4), np.arange(0)], np.array([[4, 2], [0, 0]]))
    with pytest.raises(ValueError, match="ends have 1 rows"):
        lookahead.push([np.arange(4), np.arange(0)], np.array([[2, 4]]))
    short: Any = np.arange(4, dtype=np.int32)
    with pytest.raises(TypeError):
        lookahead.push([short, np.arange(0)], np.array([[2, 4], [0, 0]]))
    with pytest.raises(ValueError, match="slots is 0"):
        window(slots=0)
    push(lookahead, [1, 2], [3, 4])
    assert lookahead.resident == 0


def test_a_decision_has_every_trainers_part() -> None:
    lookahead = window()
    push(lookahead, [3, 4], [7, 7])
    push(lookahead, [4, 4], [1 << 40, 7])
    parts = lookahead.pop().dispatch()[1:]
    assert parts[0].used_ends.tolist() == [1, 2]
    assert parts[0].next_users.tolist() == [3, 2]
    assert parts[0].owners.tolist() == [1, 1]
    assert parts[0].critical.tolist() == [1, 1]
    assert parts[0].fetched_ids.tolist() == [4, 7]
    assert parts[0].rows_of_ids.tolist() == [0, 0]
    assert parts[0].id_ends.tolist() == [1, 2]
    assert parts[0].evicted_ends.tolist() == [0, 0]
