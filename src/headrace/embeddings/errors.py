"""Exceptions of embeddings, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    └── InputError (ValueError)
        └── EmbeddingError      a job's embeddings cannot be served as asked
            └── ExampleError    a file of examples cannot be read
"""

from headrace.errors import InputError
from headrace.facades import offered_by


@offered_by("headrace.embeddings")
class EmbeddingError(InputError):
    """A job's embeddings cannot be served as asked; the message says what would do."""


@offered_by("headrace.embeddings")
class ExampleError(EmbeddingError):
    """A file of examples cannot be read; the message names the file, the line and the column."""
