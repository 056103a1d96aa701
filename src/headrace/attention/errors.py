"""Exceptions of attention, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    └── InputError (ValueError)
        └── AttentionError       a model, plan or cache cannot be used as asked
            └── CapacityError    a cache is full
"""

from headrace.errors import InputError
from headrace.facades import offered_by


@offered_by("headrace.attention")
class AttentionError(InputError):
    """A model, a plan or a cache cannot be used as asked; the message says what would do."""


@offered_by("headrace.attention")
class CapacityError(AttentionError):
    """A cache of fixed capacity would hold more tokens than it has room for."""
