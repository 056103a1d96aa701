"""Bundled profiles: the architectures' parameters, and what literature says of their times."""

import math

import pytest

from headrace.compression.errors import CompressionError
from headrace.compression.plan.models import MODELS, bundled_profile

PARAMETERS = {"resnet50": 25_557_032, "resnet101": 44_549_160, "bert-base": 109_482_240}
TENSORS = {"resnet50": 161, "resnet101": 314, "bert-base": 199}

PAPERS_CODECS = (
    *("mstopk:1%", "dgc:1%", "topk:1%", "randomk:1%", "sign", "qsgd:2", "terngrad"),
    *("powersgd:4", "atomo:4"),
)
"""Rows of Table 4.1."""


def test_the_models_have_the_parameters_of_their_definitions() -> None:
    assert set(MODELS) == set(PARAMETERS)
    for model, parameters in PARAMETERS.items():
        profile = bundled_profile(model)
        assert profile.elements == parameters
        assert len(profile.tensors) == TENSORS[model]


def test_names_and_shapes_are_torchvisions_and_hugging_faces() -> None:
    shapes = {t.name: t.shape for t in bundled_profile("resnet50").tensors}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["bn1.weight"] == (64,)
    assert shapes["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert shapes["layer1.0.downsample.1.bias"] == (256,)
    assert shapes["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    shapes = {t.name: t.shape for t in bundled_profile("bert-base").tensors}
    assert shapes["embeddings.word_embeddings.weight"] == (30522, 768)
    assert shapes["encoder.layer.11.intermediate.dense.weight"] == (3072, 768)


def test_gradients_come_from_the_last_layer_on_in_buckets_of_ddp() -> None:
    for model in MODELS:
        profile = bundled_profile(model)
        assert profile.tensors[0].name.startswith(("fc", "pooler"))
        sizes = [4 * sum(t.elements for t in tensors) for tensors in profile.bucket_tensors()]
        assert sizes[0] >= 1 << 20
        assert all(size >= 25 << 20 for size in sizes[1:-1])
        ready = [bucket.ready_us for bucket in profile.buckets]
        assert ready == sorted(ready)
        assert ready[-1] == profile.backward_us


def test_times_follow_the_literatures_rates_and_the_batch() -> None:
    profile = bundled_profile("resnet50", 64)
    step_us = profile.forward_us + profile.backward_us
    assert step_us == pytest.approx(64 / 367 * 1e6)
    half = bundled_profile("resnet50", 32)
    assert half.backward_us == pytest.approx(profile.backward_us / 2)
    larger = bundled_profile("resnet101", 64)
    assert (larger.forward_us + larger.backward_us) / step_us == pytest.approx(
        7.80 / 4.09, rel=0.01
    )
    bert = bundled_profile("bert-base", 12)  # BERT-large has 3.5 times the work
    assert (bert.forward_us + bert.backward_us) / 12 == pytest.approx(1e6 / 8.36 / 3.47, rel=0.01)


def test_codecs_take_the_papers_times() -> None:
    profile = bundled_profile("resnet50")
    for name, ms in (("powersgd:4", 45.0), ("sign", 16.0), ("topk:1%", 273.0)):
        timing = profile.codecs[name]
        assert timing.encode_us[0] + timing.decode_us[0] == pytest.approx(ms * 1e3)
    larger = bundled_profile("bert-base").codecs["sign"]
    both = larger.encode_us[0] + larger.decode_us[0]
    assert both / 16e3 == pytest.approx(larger.elements[0] / profile.codecs["sign"].elements[0])


def test_codecs_that_the_paper_has_no_times_of_are_derived_and_named() -> None:
    """minmax and fp8, which the documents recommend, were in no prediction for bundled models."""
    profile = bundled_profile("resnet50")

    def both_us(name: str) -> float:
        timing = profile.codecs[name]
        return timing.encode_us[0] + timing.decode_us[0]

    assert set(profile.derived) == set(profile.codecs) - set(PAPERS_CODECS)
    for name, share in (("minmax:4", 0.56), ("fp8", 0.25)):
        assert both_us(name) == pytest.approx(share * both_us("qsgd:2"))
        assert f"{share} of qsgd:2's time" in profile.derived[name]
    assert both_us("powersgd:8") == pytest.approx(2 * both_us("powersgd:4"))


def test_the_provenance_says_where_figures_are_from() -> None:
    for model in MODELS:
        provenance = bundled_profile(model).provenance
        assert provenance["kind"] == "literature"
        for word in ("367 images/s", "Table 4.1", "in proportion to the elements"):
            assert word in provenance["source"]


def test_other_models_and_batches_are_refused() -> None:
    with pytest.raises(CompressionError, match="model is 'vgg', needs one of resnet50, "):
        bundled_profile("vgg")
    with pytest.raises(CompressionError, match="batch is 0, needs 1 to"):
        bundled_profile("resnet50", 0)
    assert math.isfinite(bundled_profile("resnet50", 1).backward_us)
