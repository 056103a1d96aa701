"""The choice of bits and heads of keys, on losses that are made up."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.attention import (
    AttentionError,
    AttentionPlan,
    FrontierPoint,
    LayerHeads,
    StorageFormat,
)
from headrace.attention.plan.choose import added_loss, choose, frontier, mean_and_error
from headrace.attention.profile import AttentionProfile, LayerProfile

HEADS = LayerHeads(query_heads=4, key_value_heads=4, dim=64)


def profile_of(heads: LayerHeads = HEADS, layers: int = 2) -> AttentionProfile:
    count = heads.query_heads
    square = np.ones((count, count)) - np.eye(count)
    layer = LayerProfile(
        heads=heads,
        correlation=np.eye(count),
        correlation_beyond_first=np.eye(count),
        sample_correlation=np.eye(count),
        distance=square,
        output_error=square,
        uniformity=np.zeros(count),
        changes=np.zeros(3),
    )
    return AttentionProfile(layers=(layer,) * layers, model="m", text="t", samples=1, tokens=16)


def measure_of(losses: dict[str, float], names: list[str]):
    """Return a measure of what keys of each number of bits and of each head cost."""

    def measure(name: str, plan: AttentionPlan) -> list[float]:
        names.append(name)
        added = 0.0
        for index, layer in enumerate(plan.layers):
            added += losses.get(layer.keys.value, 0) + losses.get("v" + layer.values.value, 0)
            head = losses.get(f"head of layer {index}", losses.get("head", 0))
            added += head * (layer.heads.key_value_heads - layer.key_heads)
            added += losses.get("own membership", 0) * (layer.representatives is None)
        return [4.0 * (1 + added / len(plan.layers))] * 3

    return measure


def test_the_fewest_bytes_within_the_loss_are_chosen() -> None:
    names: list[str] = []
    losses = {"int8": 0.001, "int4": 0.004, "vint4": 0.02, "head": 0.005, "own membership": 0.001}
    measure = measure_of(losses, names)
    plan = choose(profile_of(), measure, allowed_loss=0.01, element_bytes=2)
    layer = plan.layers[0]
    assert (layer.keys, layer.values) == (StorageFormat.INT4, StorageFormat.INT8)
    assert layer.key_heads == 3
    assert plan.chosen == "keys of 3 of 4 heads, fixed, 4-bit keys, 8-bit values"
    assert plan.frontier[0].share < plan.frontier[-1].share == 1
    assert all(choice.added_loss >= 0 for choice in plan.frontier)


def test_without_redundancy_there_is_nothing_to_gain() -> None:
    names: list[str] = []
    measure = measure_of({"int8": 0.3, "head": 0.5}, names)
    plan = choose(profile_of(), measure, allowed_loss=0.01, element_bytes=2)
    assert plan.chosen == "the model's own cache"
    assert plan.share == 1
    assert "4-bit keys, 8-bit values" not in names, "what is hopeless is not followed"
    assert not any("2 of 4 heads" in name for name in names)


def test_a_model_whose_own_loss_is_no_number_has_no_plan() -> None:
    """ValueError: "min() iterable argument is empty"."""
    with pytest.raises(AttentionError, match="the model's own loss is nan"):
        choose(profile_of(), lambda *_: [math.nan, 1.0], allowed_loss=0.1, element_bytes=2)


def test_membership_is_of_each_request_where_that_loses_less() -> None:
    names: list[str] = []
    measure = measure_of({"int8": 1, "head": 0.004, "own membership": -0.002}, names)
    plan = choose(profile_of(), measure, allowed_loss=0.01, element_bytes=2)
    assert plan.chosen == "keys of 2 of 4 heads, by the first 5 tokens"
    assert plan.layers[0].representatives is None
    assert "keys of 3 of 4 heads, by the first 64 tokens" in names


def test_layers_that_lose_little_give_up_more_heads() -> None:
    names: list[str] = []
    measure = measure_of({"int8": 1, "head of layer 0": 0.016, "head of layer 1": 0.001}, names)
    plan = choose(profile_of(), measure, allowed_loss=0.01, element_bytes=2)
    assert [layer.key_heads for layer in plan.layers] == [3, 1]
    assert plan.chosen == "keys of 4 of 8 heads in all layers, by their losses"
    assert "keys of 1 of 4 heads in layer 0" in names
    plan = choose(profile_of(), measure, allowed_loss=0.005, element_bytes=2)
    assert [layer.key_heads for layer in plan.layers] == [4, 1]
    assert plan.layers[0].representatives is None, "a layer that keeps all heads is as it was"


def test_fewer_bits_leave_less_of_the_loss_to_heads() -> None:
    losses = {"int8": 0.003, "int4": 1, "head of layer 0": 0.016, "head of layer 1": 0.001}
    measure = measure_of(losses, [])
    plan = choose(profile_of(), measure, allowed_loss=0.0099, element_bytes=2)
    assert [layer.key_heads for layer in plan.layers] == [4, 1]
    assert {layer.keys for layer in plan.layers} == {StorageFormat.INT8}
    assert (
        plan.chosen
        == "keys of 5 of 8 heads in all layers, by their losses, 8-bit keys, 8-bit values"
    )


def test_the_papers_clusters_are_measured_beside() -> None:
    names: list[str] = []
    profile = profile_of()
    heads = np.array([0, 0, 1, 1])
    distance = 1.0 * (heads[:, None] != heads)
    layers = tuple(replace(layer, distance=distance) for layer in profile.layers)
    measure = measure_of({"int8": 1, "head": 1}, names)
    choose(replace(profile, layers=layers), measure, allowed_loss=0.01, element_bytes=2)
    assert "clusters by elbow, of each request" in names


def test_dimensions_that_4_bits_do_not_pack_have_8() -> None:
    names: list[str] = []
    heads = LayerHeads(query_heads=2, key_value_heads=2, dim=80)
    plan = choose(profile_of(heads), measure_of({}, names), allowed_loss=0.01, element_bytes=2)
    assert plan.layers[0].keys is StorageFormat.INT8
    assert not any("4-bit" in name for name in names)


def test_a_frontier_has_nothing_that_is_beaten() -> None:
    choices = [
        FrontierPoint(name=name, share=share, added_loss=loss, standard_error=0)
        for name, share, loss in (("a", 1, 0), ("b", 0.5, 0.1), ("c", 0.6, 0.2), ("d", 0.5, 0.3))
    ]
    assert [choice.name for choice in frontier(choices)] == ["b", "a"]
    # less loss that is less certain does not beat what is chosen by both together
    sure = FrontierPoint(name="sure", share=0.6, added_loss=0.008, standard_error=0.001)
    unsure = FrontierPoint(name="unsure", share=0.5, added_loss=0.007, standard_error=0.004)
    assert frontier([sure, unsure]) == (unsure, sure)


def test_added_loss_is_of_samples_in_pairs() -> None:
    added, error = added_loss([2.2, 4.2], [2.0, 4.0])
    assert added == pytest.approx(0.2 / 3)
    assert error == pytest.approx(0, abs=1e-12)


def test_a_loss_that_is_not_finite_is_on_no_frontier() -> None:
    """`statistics` failed with an AttributeError."""
    for loss in (math.inf, math.nan):
        assert added_loss([1.0, loss], [1.0, 2.0]) == (math.inf, math.inf)
    lost = FrontierPoint(name="lost", share=0.1, added_loss=math.inf, standard_error=math.inf)
    kept = FrontierPoint(name="kept", share=0.5, added_loss=0.1, standard_error=0.0)
    assert frontier([kept, lost]) == (kept,)


def test_mean_and_error() -> None:
    assert mean_and_error([1, 0, 1, 0]) == (0.5, pytest.approx(0.5773503 / 2))
    assert mean_and_error([True]) == (1, 0)
