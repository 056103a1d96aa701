"""Processes of one kind are on different nodes, as far as there are some."""

from headrace.launch.placement import spread_over_nodes

CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def test_neighbours_are_on_different_nodes() -> None:
    assert spread_over_nodes([CPU] * 5, ["a", "a", "b", "b", "c"]) == [0, 2, 4, 1, 3]
    assert spread_over_nodes([CPU] * 3, ["a", "a", "a"]) == [0, 1, 2]


def test_a_process_gets_a_bundle_of_its_own_needs() -> None:
    needs = [GPU, GPU, CPU, CPU, CPU]
    assert spread_over_nodes(needs, ["b", "b", "b", "b", "a"]) == [0, 1, 2, 4, 3]
