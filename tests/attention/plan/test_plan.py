"""Plans: files, bytes, and fields that disagree."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.attention import (
    AttentionError,
    AttentionPlan,
    FrontierPoint,
    LayerHeads,
    LayerPlan,
    ModelWeights,
    StorageFormat,
)
from headrace.attention.plan.plan import uncompressed_layer
from headrace.errors import ArtifactError

HEADS = LayerHeads(query_heads=32, key_value_heads=32, dim=128)
GQA = LayerHeads(query_heads=8, key_value_heads=4, dim=64)


def plan_of(*layers: LayerPlan) -> AttentionPlan:
    return AttentionPlan(layers=layers)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = AttentionPlan(
        layers=(
            LayerPlan(heads=HEADS, clusters=12, key_heads=12, keys=StorageFormat.INT8),
            LayerPlan(
                heads=GQA,
                clusters=4,
                key_heads=2,
                representatives=(0, 1, 0, 1, 4, 5, 4, 5),
                values=StorageFormat.INT4,
            ),
        ),
        model="abc",
        text="def",
        frontier=(FrontierPoint(name="own", share=1, added_loss=0, standard_error=0),),
        chosen="own",
        weights=ModelWeights(read_bytes=6, read_numbers=3, hidden_size=2),
    )
    plan.save(tmp_path / "plan.json")
    assert AttentionPlan.load(tmp_path / "plan.json") == plan
    assert "16 of 40 heads represent" in repr(plan)


@pytest.mark.parametrize(
    ("keys", "values", "clusters", "share"),
    [
        (StorageFormat.MODEL, StorageFormat.MODEL, 12, (12 / 32 + 1) / 2),
        (StorageFormat.INT8, StorageFormat.INT8, 32, (128 + 4) / 256),
        (StorageFormat.INT4, StorageFormat.INT8, 32, ((64 + 8) + (128 + 4)) / 512),
    ],
)
def test_bytes_follow_from_heads_and_bits(
    keys: StorageFormat, values: StorageFormat, clusters: int, share: float
) -> None:
    layer = LayerPlan(heads=HEADS, clusters=clusters, key_heads=clusters, keys=keys, values=values)
    assert plan_of(layer).share == pytest.approx(share)


def test_the_papers_mean_of_18_of_32_clusters_saves_21_percent() -> None:
    """Figure 6.8: up to 21.4% of LLaMA-7B's cache; values all stay."""
    layer = LayerPlan(heads=HEADS, clusters=18, key_heads=18)
    assert 1 - plan_of(layer).share == pytest.approx(0.219, abs=0.005)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": 0}, "clusters are 0, needs 1 to 8"),
        ({"key_heads": 5}, "key_heads are 5, needs 1 to 4"),
        # caches by such a plan were written to beyond their end
        (
            {"clusters": 8, "representatives": None},
            "key_heads are 1 where every head represents itself, needs 4",
        ),
        ({"heads": replace(GQA, key_value_heads=16)}, "heads are 8, needs a multiple of the 16"),
        ({"representatives": (0,) * 7}, "representatives need 8 heads"),
        ({"representatives": (1, 0, 0, 0, 0, 0, 0, 0)}, "head 0 represents others, and has head 1"),
        ({"representatives": (0,) * 8}, "representatives are 1, clusters 2"),
        (
            {"representatives": (0, 1) * 4, "key_heads": 2},
            "representatives have 1 heads of keys, not 2",
        ),
    ],
)
def test_fields_that_disagree_are_refused(change: dict, message: str) -> None:
    layer = LayerPlan(heads=GQA, clusters=2, key_heads=1, representatives=(0, 1, 0, 1, 0, 1, 0, 1))
    with pytest.raises(AttentionError, match=message):
        replace(layer, **change)


def test_a_file_with_a_wrong_field_names_it(tmp_path: Path) -> None:
    plan = plan_of(uncompressed_layer(GQA))
    head, tables = plan.to_content()
    head["layers"][0]["keys"] = "int7"
    artifact = replace(plan.to_artifact(), head=head, tables=tables)
    artifact.save(tmp_path / "plan.json")
    with pytest.raises(ArtifactError, match=r"layers\[0\]\.keys' is 'int7', needs model or int8"):
        AttentionPlan.load(tmp_path / "plan.json")
