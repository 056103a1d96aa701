"""Heads of keys of every layer, by losses of one layer at a time."""

from headrace.attention.plan.layer_shares import key_head_levels, key_heads_by_loss


def test_levels_are_fewer_where_layers_are_many() -> None:
    assert key_head_levels(16, layers=2) == [14, 12, 10, 8, 6, 4, 2]
    assert key_head_levels(32, layers=32) == [21, 11]
    assert key_head_levels(4, layers=80) == [2]
    assert key_head_levels(1, layers=2) == []


def test_heads_go_where_they_save_most_for_the_loss() -> None:
    added = [{6: 0.004, 4: 0.02}, {6: 0.001, 4: 0.002}]
    assert key_heads_by_loss(added, [8, 8], [64, 64], 0.0005) == (8, 8)
    assert key_heads_by_loss(added, [8, 8], [64, 64], 0.0021) == (8, 4)
    assert key_heads_by_loss(added, [8, 8], [64, 64], 0.0061) == (6, 4)
    assert key_heads_by_loss(added, [8, 8], [64, 64], 0.5) == (4, 4)


def test_a_step_may_skip_a_number_of_heads_that_loses_more_by_chance() -> None:
    assert key_heads_by_loss([{6: 0.003, 4: 0.001}], [8], [64], 0.002) == (4,)
    assert key_heads_by_loss([{6: -0.003, 4: 0.001}], [8], [64], 0.002) == (4,)
    assert key_heads_by_loss([{6: -0.003, 4: 0.001}], [8], [64], 0.0) == (6,)


def test_larger_heads_save_more_and_layers_without_losses_keep_all() -> None:
    added = [{4: 0.003}, {4: 0.003}, {}]
    assert key_heads_by_loss(added, [8, 8, 8], [64, 128, 64], 0.004) == (8, 4, 8)
