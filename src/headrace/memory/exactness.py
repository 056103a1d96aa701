"""Exactness of implementations: the relation of their results to the default's."""

from enum import Enum

from headrace.errors import InputError


class Exactness(Enum):
    """Relation of an implementation's results to the default's.

    Attributes
    ----------
    EXACT : the same bits.
    ROUNDED : the same terms in another order or association; they differ by rounding.
    CONDITIONAL : rounded, and refused at a run where a condition does not hold.
    LOSSY : values are stored in fewer bits.
    """

    EXACT = "exact"
    ROUNDED = "rounded"
    CONDITIONAL = "conditional"
    LOSSY = "lossy"

    @property
    def included(self) -> "frozenset[Exactness]":
        """All that may be used where this may: exact ones, this, and rounded ones beside others."""
        rounded = set() if self is Exactness.EXACT else {Exactness.ROUNDED}
        return frozenset({Exactness.EXACT, self, *rounded})


def allowed_exactness(*, exact: bool, lossy: bool) -> Exactness:
    """Return the exactness that a user allows.

    Raises
    ------
    InputError : both.
    """
    if exact and lossy:
        raise InputError("exact and lossy exclude each other: choose one, or neither")
    if exact:
        return Exactness.EXACT
    return Exactness.LOSSY if lossy else Exactness.ROUNDED
