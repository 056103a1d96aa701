"""Decoders of the benchmark of attention: planted clusters, and the bounds of fewer layers."""

import pytest
import torch

from benchmarks.attention.decoders import HEADS, copied_heads, decoder, plans
from headrace.attention.plan.step import step_bound


@pytest.mark.parametrize(("key_value_heads", "clusters", "gain"), [(32, 12, 1.16), (8, 16, 1.05)])
def test_fewer_layers_and_words_have_the_same_bound(
    key_value_heads: int, clusters: int, gain: float
) -> None:
    bounds: list[dict[str, float]] = []
    for layers in (4, 16):
        with torch.device("meta"):
            model = decoder(layers, key_value_heads)
        by_name = plans(model)
        assert by_name["clusters"].layers[0].clusters == clusters
        bounds.append(
            {name: step_bound(plan, batch=4, tokens=4096) for name, plan in by_name.items()}
        )
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-3)
    assert bounds[0]["clusters"] == pytest.approx(gain, abs=0.005)
    assert bounds[0]["fixed clusters"] > bounds[0]["clusters"]


def test_fixed_representatives_are_the_heads_that_others_copy() -> None:
    with torch.device("meta"):
        model = decoder(1, 8)
    representatives = plans(model)["fixed clusters"].layers[0].representatives
    assert representatives is not None
    assert [head // 4 for head in representatives[::4]] == copied_heads(8).tolist()
    assert all(head % 4 == place % 4 for place, head in enumerate(representatives))
    assert len(representatives) == HEADS
