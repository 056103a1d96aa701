"""Values that need to be the same on all ranks are compared, and errors name who has what."""

import pytest

from headrace.job.same import SHORT, difference, ranks_by_value, shortened


def test_equal_texts_have_no_difference() -> None:
    assert difference("plan books", ["a", "a", "a"], "Use one.") is None
    assert difference("plan books", ["a"], "Use one.") is None


def test_an_error_names_what_every_rank_has() -> None:
    assert difference("plan books", ["3f", "none", "3f", "a0"], "Use one file.") == (
        "the plan books of ranks differ: ranks 0, 2 have 3f; rank 1 has none; rank 3 has a0. "
        "Use one file."
    )


def test_ranks_stand_in_the_order_of_the_first_that_has_a_value() -> None:
    assert list(ranks_by_value([b"z", b"a", b"z"]).items()) == [(b"z", [0, 2]), (b"a", [1])]


@pytest.mark.parametrize("text", ["", "adam", "x" * SHORT])
def test_short_texts_stay(text: str) -> None:
    assert shortened(text) == text


def test_long_texts_that_differ_at_their_end_still_differ() -> None:
    first, second = ("layer " * 1000 + end for end in "ab")
    assert shortened(first) != shortened(second)
    assert shortened(first) == shortened("layer " * 1000 + "a")
    assert len(shortened(first)) == SHORT
    assert shortened(first)[:100] == first[:100]


def test_other_letters_take_no_more_bytes_than_characters() -> None:
    for text in ("é" * 10, "é" * 1000, "\U0001f600"):
        assert len(shortened(text).encode()) <= SHORT
