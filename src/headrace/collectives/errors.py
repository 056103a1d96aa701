"""Exceptions of collectives, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── InputError (ValueError)
    │   ├── ProgramError          a program is malformed
    │   ├── SketchError           a communication sketch is wrong, or does not fit its topology
    │   ├── MscclError            a file is not MSCCL XML
    │   └── MscclppError          a file is not an MSCCL++ execution plan that can be read
    └── UnverifiedPlanError       an unproven or altered plan was given to the executor
"""

from headrace.errors import HeadraceError, InputError
from headrace.facades import offered_by


@offered_by("headrace.collectives")
class ProgramError(InputError):
    """A program or schedule is malformed (before any question of correctness)."""


@offered_by("headrace.collectives")
class SketchError(InputError):
    """A communication sketch is wrong, or does not fit its topology or collective."""


@offered_by("headrace.collectives")
class MscclError(InputError):
    """A file is not MSCCL XML; the message names the place, and the values allowed."""


@offered_by("headrace.collectives")
class MscclppError(InputError):
    """A file is not an MSCCL++ execution plan of a form that can be read."""


@offered_by("headrace.collectives")
class UnverifiedPlanError(HeadraceError):
    """A plan for the executor is unproven or differs from the proven one."""
