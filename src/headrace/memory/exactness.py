"""Exactness of implementations: the relation of their results to the default's."""

from enum import Enum

from headrace.errors import InputError
from headrace.facades import offered_by


@offered_by("headrace.memory")
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


def allowed_exactness(*, exact: bool, lossy: bool, conditional: bool = False) -> Exactness:
    """Return the exactness that a user allows.

    Raises
    ------
    InputError : more than one of them.
    """
    allowed = {
        "exact": (exact, Exactness.EXACT),
        "lossy": (lossy, Exactness.LOSSY),
        "conditional": (conditional, Exactness.CONDITIONAL),
    }
    allowed_kinds = {
        name: exactness for name, (is_allowed, exactness) in allowed.items() if is_allowed
    }
    if len(allowed_kinds) > 1:
        names = " and ".join(allowed_kinds)
        raise InputError(f"{names} exclude each other: choose one, or none of them")
    return next(iter(allowed_kinds.values()), Exactness.ROUNDED)
