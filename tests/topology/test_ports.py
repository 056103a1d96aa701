import numpy as np

from headrace.topology.ports import by_direction, members


def test_members_are_by_key_in_order_and_empty_where_a_key_has_none() -> None:
    assert members(np.array([2, 0, 2]), 4) == [(1,), (), (0, 2), ()]
    assert members(np.array([1, 0, 1]), 2, np.array([5, 6, 9])) == [(6,), (5, 9)]


def test_links_go_out_at_their_source_and_in_at_their_destination() -> None:
    src, dst = np.array([0, 0, 2]), np.array([2, 1, 0])
    assert list(by_direction(src, dst, 4, np.array([3, 4, 7]))) == [
        (0, "out", (3, 4)),
        (0, "in", (7,)),
        (1, "in", (4,)),
        (2, "out", (7,)),
        (2, "in", (3,)),
    ]
