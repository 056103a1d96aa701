"""Exceptions of the learned index, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── FolderError (RuntimeError)  a durable index's folder is in use, damaged, or cannot be used
    ├── InputError (ValueError)
    │   ├── CapError              no configuration is within the cap of bytes per key
    │   ├── ConfigurationError    a field of a configuration is out of range
    │   ├── KeysError             keys or values cannot be those of an index
    │   ├── PlanningError         no configuration was found for a recorded workload
    │   └── TraceError            keys or operations of a trace cannot be used
    └── VerificationError
        ├── ChoiceError           a plan's choice is not the best of its candidates
        └── InvariantError        the structure of an index is damaged
"""

from headrace.errors import HeadraceError, InputError, VerificationError
from headrace.facades import offered_by


@offered_by("headrace.index")
class ConfigurationError(InputError):
    """A field of a configuration is out of range; names it, what was found and what is needed."""


@offered_by("headrace.index")
class TraceError(InputError):
    """Keys or operations cannot be used: their type, length or values; names the array."""


@offered_by("headrace.index")
class KeysError(InputError):
    """Keys or values cannot be those of an index: their type, length, or a number; names it."""


@offered_by("headrace.index")
class PlanningError(InputError):
    """No configuration was found for a recorded workload; the message has the reason."""


@offered_by("headrace.index")
class CapError(InputError):
    """No configuration is within the cap of bytes per key; names the least that one needs."""


@offered_by("headrace.index")
class ChoiceError(VerificationError):
    """A plan's choice is not the best of its candidates, or not within its cap."""


@offered_by("headrace.index")
class InvariantError(VerificationError):
    """The structure of an index is damaged; names the node and the invariant."""


@offered_by("headrace.index")
class FolderError(HeadraceError, RuntimeError):
    """A durable index's folder is in use, closed, damaged, or cannot be read or written."""
