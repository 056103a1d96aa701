"""Formats of stored keys and values, the bytes that a token takes, and those of weights."""

from enum import Enum
from typing import NamedTuple

from headrace.artifact_value import stored_value
from headrace.attention.errors import AttentionError
from headrace.facades import offered_by

GROUP_TOKENS = 64
"""Tokens whose keys of 4 bits share a unit for each channel: one key's channels differ more than
one channel's tokens."""
CODE_DIMENSIONS = 32
"""Dimensions whose codes of 4 bits are 16 bytes: those of i and of i + 16 share a byte."""
BLOCK_TOKENS = 256
"""Tokens that a growing cache allocates at a time; whole groups."""
TAIL_TOKENS = 2 * GROUP_TOKENS
"""Keys beside those of 4 bits: the group that is not complete, and the newest that is, which a
removal of tokens may reopen."""


@offered_by("headrace.attention")
class StorageFormat(Enum):
    """Format of stored rows of keys or values.

    ``model``: in the model's type. ``int8``: codes of 8 bits with one unit for each token.
    ``int4``: codes of 4 bits; of values with unit and offset for each token, of keys for each
    channel of `GROUP_TOKENS` tokens.
    """

    MODEL = "model"
    INT8 = "int8"
    INT4 = "int4"


_RANGE_BYTES = 4
"""Of a unit: a float32, or a unit and an offset of bfloat16."""


def key_bytes(form: StorageFormat, dim: int, element_bytes: int) -> float:
    """Return the bytes of one token's keys of one head; see `LayerHeads` for parameters."""
    if form is StorageFormat.INT4:
        return dim / 2 + _RANGE_BYTES * dim / GROUP_TOKENS
    return value_bytes(form, dim, element_bytes)


def value_bytes(form: StorageFormat, dim: int, element_bytes: int) -> float:
    """Return the bytes of one token's values of one head."""
    match form:
        case StorageFormat.MODEL:
            return dim * element_bytes
        case StorageFormat.INT8:
            return dim + _RANGE_BYTES
        case StorageFormat.INT4:
            return dim / 2 + _RANGE_BYTES


@stored_value("headrace.attention", AttentionError)
class LayerHeads:
    """Heads of one layer of attention.

    Attributes
    ----------
    query_heads : neighbours share a head of keys and values.
    key_value_heads : of keys, and of values.
    dim : numbers of a head.
    """

    query_heads: int
    key_value_heads: int
    dim: int


@offered_by("headrace.attention")
class ModelWeights(NamedTuple):
    """Weights that every step of decoding reads.

    Attributes
    ----------
    read_bytes : of all weights but embeddings, of which a step reads single rows.
    read_numbers : in them.
    hidden_size : numbers of a token between layers, which projections multiply.
    """

    read_bytes: int
    read_numbers: int
    hidden_size: int
