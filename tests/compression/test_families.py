"""Codecs as texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy


@pytest.mark.parametrize("text", ["none", "topk:1%", "dgc:0.1%", "powersgd:4+bf16", "qsgd:8"])
def test_a_text_is_its_codecs(text: str) -> None:
    assert str(CodecSpec.parse(text)) == text


@given(st.floats(0, 1, exclude_min=True))
def test_a_codecs_text_is_read_back_as_it(share: float) -> None:
    codec = CodecSpec(family="topk", parameter=share)
    assert CodecSpec.parse(str(codec)) == codec


@pytest.mark.parametrize("codec", [None, 4])
def test_what_is_no_text_is_refused(codec: object) -> None:
    """It was an AttributeError of a hook: ``'NoneType' object has no attribute 'strip'``."""
    with pytest.raises(CompressionError, match=f"codec is {codec}, needs a text such as"):
        Policy(codec=codec)  # type: ignore[arg-type]
