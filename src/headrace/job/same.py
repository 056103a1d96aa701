"""Values that need to be the same on all ranks: which rank has what, in one form of error.

Each mechanism gathers the values in its own way (a store, an all-gather, connections); `shortened`
makes one fit for that, and `difference` compares what was gathered.
"""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

SHORT = 160
"""Most characters of a text that `shortened` returns."""

_DIGITS = 16

_Value = TypeVar("_Value", bound=Hashable)


def shortened(text: str) -> str:
    """Return at most `SHORT` ASCII characters, which differ where texts do.

    A long text is its beginning and 64 bits of its SHA-256.
    """
    ascii_text = text.encode("ascii", "backslashreplace").decode()
    if len(ascii_text) <= SHORT:
        return ascii_text
    ending = f"... ({hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]})"
    return ascii_text[: SHORT - len(ending)] + ending


def ranks_by_value(values: Iterable[_Value]) -> dict[_Value, list[int]]:
    """Return the ranks that have each value, by the first rank that has it.

    Parameters
    ----------
    values : of all ranks, in order.
    """
    ranks: dict[_Value, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def difference(what: str, texts: Sequence[str], remedy: str) -> str | None:
    """Return the message of an error if the ranks' texts differ; None if all are the same.

    Parameters
    ----------
    what : is compared, in the plural: "plan books".
    texts : of all ranks, in order: what a rank has.
    remedy : end of the message.
    """
    ranks = ranks_by_value(texts)
    if len(ranks) == 1:
        return None
    parts = [
        f"rank{'s' * (len(members) > 1)} {', '.join(map(str, members))} "
        f"{'have' if len(members) > 1 else 'has'} {text}"
        for text, members in ranks.items()
    ]
    return f"the {what} of ranks differ: {'; '.join(parts)}. {remedy}"
