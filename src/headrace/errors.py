"""Exceptions that headrace raises deliberately; a capability's own are in its ``errors``.

::

    HeadraceError
    ├── InputError (ValueError)       an input is wrong
    │   ├── ArtifactError             a file is not the artifact it claims to be
    │   ├── TopologyError             a topology is inconsistent
    │   │   └── SymmetryError         a permutation of ranks is no automorphism of it
    │   ├── ModelError                a model for a solver is malformed
    │   └── TestbedError              a testbed file or command is wrong
    ├── VerificationError             a plan does not do what it states
    ├── CommunicationError (RuntimeError)  a peer died, a deadline passed, a stream broke
    └── ForkError (RuntimeError)      a child uses what belongs to the process it was forked from

A message names the field or the rank, the value found, and the values allowed.
"""

from headrace.facades import offered_by


@offered_by("headrace")
class HeadraceError(Exception):
    """Base of every deliberate headrace exception.

    Attributes
    ----------
    exit_code : of a command that it ends.
    """

    exit_code: int = 1


@offered_by("headrace")
class InputError(HeadraceError, ValueError):
    """An input of the user is wrong; the message names it, and the values allowed."""

    exit_code: int = 2


@offered_by("headrace")
class ArtifactError(InputError):
    """A file is not the artifact it claims to be (kind, schema, digest, field)."""


@offered_by("headrace")
class TopologyError(InputError):
    """A topology names a rank, host or link that does not exist, or a bad cost."""


@offered_by("headrace")
class SymmetryError(TopologyError):
    """A permutation of ranks is no automorphism of its topology; names the offending link."""


@offered_by("headrace")
class ModelError(InputError):
    """A model for a solver is malformed: an index, a bound, an underivable big-M."""


@offered_by("headrace")
class TestbedError(InputError):
    """A testbed file is wrong, or a testbed command cannot be carried out."""

    __test__ = False  # not a test class, whatever its name suggests to pytest


@offered_by("headrace")
class VerificationError(HeadraceError):
    """A plan does not do what it states; the message names the step or the figure.

    Such as a program that does not deliver its collective, can deadlock or has a data race, a
    schedule above its budget, or a choice that another candidate beats.
    """


@offered_by("headrace")
class CommunicationError(HeadraceError, RuntimeError):
    """A peer died, a deadline passed, or a stream broke; names rank, peer, operation."""


@offered_by("headrace")
class ForkError(HeadraceError, RuntimeError):
    """A forked child uses what belongs to its parent: a thread, a process, a file of it."""
