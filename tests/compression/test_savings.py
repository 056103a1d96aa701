"""Policies that save no bytes, and the reason that is stated."""

from headrace.compression.families import NONE, CodecSpec
from headrace.compression.policy import Policy, reason_against_patterns
from headrace.compression.savings import reason_without_savings


def reason(
    codec: str, *shapes: tuple[int, ...], ranks: int = 4, policy: Policy | None = None
) -> str | None:
    names = {f"layer{number}.weight": shape for number, shape in enumerate(shapes)}
    return reason_without_savings(policy or Policy(), [CodecSpec.parse(codec)], names, ranks)


def test_a_codec_that_compresses_nothing_is_given_its_reason() -> None:
    """Small layers, or a share of 1 in place of 1%, were sent as they are without a word."""
    text = reason("powersgd:4", (31, 31), (31,), (2048,))
    assert text is not None
    assert "compresses none of 3 parameters" in text
    assert "2 of fewer than 1,024 elements, 1 of one dimension" in text
    assert "smallest, one_dimension or except_for" in text
    excepted = reason("minmax:4", (64, 64), policy=Policy(except_for=["module.layer0.*"]))
    assert excepted is not None
    assert "1 named in except_for" in excepted
    every = reason("topk:1", (64, 64))
    assert every is not None
    assert "topk:1 is a share of 100%, topk:1% a hundredth" in every
    high = reason("powersgd:32", (64, 64))
    assert high is not None
    assert "lower rank" in high


def test_gathered_codecs_save_nothing_among_many_ranks() -> None:
    assert reason("topk:1%", (256, 256), ranks=64) is None
    text = reason("topk:1%", (256, 256), ranks=256)
    assert text is not None
    assert "each of 256 ranks" in text


def test_one_codec_that_saves_is_enough_and_none_is_not_asked_to() -> None:
    names = {"weight": (64, 64)}
    topk, minmax = CodecSpec.parse("topk:1"), CodecSpec.parse("minmax:4")
    assert reason_without_savings(Policy(), [NONE, topk, minmax], names, 2) is None
    assert reason_without_savings(Policy(), [NONE], {"bias": (3,)}, 2) is None
    assert reason_without_savings(Policy(), [topk], {}, 2) is None
    assert reason("bf16", (64, 64), (3,), ranks=1) is None


def test_patterns_that_match_nothing_are_named() -> None:
    names = ["embedding.weight", "layer.0.bias"]
    for patterns, unmatched in (
        (["embedding.*", "module.layer.*", "layer._orig_mod.0.bias"], None),
        (["embeding.*", "layer"], "has 'embeding.*', 'layer', which match no parameter"),
    ):
        text = reason_against_patterns(Policy(except_for=patterns), names)
        assert (text is None) == (unmatched is None)
        assert unmatched is None or (unmatched in text and "such as 'embedding.weight'" in text)
