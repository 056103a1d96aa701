"""Exceptions of compression, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── InputError (ValueError)
    │   └── CompressionError      a codec, policy or model cannot be used as asked
    └── CommunicationError (RuntimeError)
        ├── ExchangeError         an exchange of gradients failed: a rank is missing
        └── PayloadError          a rank sent a payload that no encoder makes
"""

from headrace.errors import CommunicationError, InputError
from headrace.facades import offered_by


@offered_by("headrace.compression")
class CompressionError(InputError):
    """A codec, a policy or a model cannot be used as asked; the message says what would do."""


@offered_by("headrace.compression")
class ExchangeError(CommunicationError):
    """An exchange of gradients failed; the message names the rank that is missing, and the remedy.

    Attributes
    ----------
    missing : ranks of the job that are missing, where this and not the backend found it out: on
        Gloo. headrace's backend names the rank in the message.
    """

    def __init__(self, message: str, *, missing: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


@offered_by("headrace.compression")
class PayloadError(CommunicationError):
    """A payload that arrived holds indices, lengths or codes that no encoder makes."""
