"""The codec of a specification."""

from collections.abc import Callable, Mapping

from headrace.compression.codecs.casts import Cast, Plain
from headrace.compression.codecs.codec import Codec
from headrace.compression.codecs.lowrank import Atomo, PowerSGD
from headrace.compression.codecs.quantizers import Float8, MinMax, SignVote, Stochastic
from headrace.compression.codecs.sharded import Sharded
from headrace.compression.codecs.sparse import RandomK, Sparse
from headrace.compression.families import CodecSpec, codec_spec

CODECS: Mapping[str, Callable[[CodecSpec], Codec]] = {
    "none": Plain,
    "bf16": Cast,
    "fp16": Cast,
    "fp8": lambda spec: Sharded(spec, Float8(spec)),
    "minmax": lambda spec: Sharded(spec, MinMax(spec)),
    "qsgd": lambda spec: Sharded(spec, Stochastic(spec)),
    "terngrad": lambda spec: Sharded(spec, Stochastic(spec)),
    "sign": lambda spec: Sharded(spec, SignVote(spec)),
    "topk": Sparse,
    "mstopk": Sparse,
    "dgc": Sparse,
    "randomk": RandomK,
    "powersgd": PowerSGD,
    "atomo": Atomo,
}
"""Constructor of each family's codec."""


def make_codec(spec: CodecSpec | str) -> Codec:
    """Return the codec of a specification or of its text.

    Raises
    ------
    CompressionError : the text is none.
    """
    spec = codec_spec(spec)
    return CODECS[spec.family](spec)
