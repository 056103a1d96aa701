"""Exceptions of compression, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── InputError (ValueError)
    │   └── CompressionError      a codec, policy or model cannot be used as asked
    └── CommunicationError (RuntimeError)
        └── PayloadError          a rank sent a payload that no encoder makes
"""

from headrace.errors import CommunicationError, InputError


class CompressionError(InputError):
    """A codec, a policy or a model cannot be used as asked; the message says what would do."""


class PayloadError(CommunicationError):
    """A payload that arrived holds indices, lengths or codes that no encoder makes."""
