"""Policies: which codec compresses which parameter."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec, codec_spec
from headrace.compression.names import name_matches
from headrace.facades import public_value

SMALLEST = 1024
"""Elements below which a tensor is sent as it is: its share of the bytes is not worth encoding."""

RESIDUALS = ("fp32", "bf16")
"""Types of residuals."""


@public_value("headrace.compression")
class Policy:
    """Codec of each parameter, by its name and shape.

    Biases and the weights of norms have one dimension and are left alone, as are tensors of few
    elements: their gradients are few bytes, and training is sensitive to them.

    Attributes
    ----------
    codec : of all parameters that no rule leaves alone; a text as `CodecSpec.parse` reads it.
    except_for : patterns (as in shells) of names of parameters that are sent as they are: the
        module's names, or those of its DistributedDataParallel, which begin with ``module.``.
    smallest : elements below which a tensor is sent as it is.
    one_dimension : compress tensors of one dimension, too.
    feedback : add what was not sent to the next gradient; None: as the codec's family does.
    residuals : type in which what was not sent is kept: ``fp32``, or ``bf16`` for half of the
        memory between steps. (Under a loss scale the range of float16 would not suffice.)
    """

    codec: CodecSpec | str = NONE
    except_for: Sequence[str] = ()
    smallest: int = SMALLEST
    one_dimension: bool = False
    feedback: bool | None = None
    # not in the texts by which saved states name their schedules: a state of either type is taken
    residuals: str = field(default="fp32", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", codec_spec(self.codec))
        if isinstance(self.except_for, str):
            raise CompressionError(
                f"except_for is the text {self.except_for!r}, needs a list of patterns"
            )
        object.__setattr__(self, "except_for", tuple(self.except_for))
        if self.smallest < 0:
            raise CompressionError(f"smallest is {self.smallest}, needs 0 or more elements")
        if self.residuals not in RESIDUALS:
            raise CompressionError(
                f"residuals is {self.residuals!r}, needs one of {', '.join(RESIDUALS)}"
            )

    def codec_of(
        self, name: str, shape: Sequence[int], codec: CodecSpec | None = None
    ) -> CodecSpec:
        """Return the codec of a parameter; `codec`, if given, is used in place of the policy's.

        A matrix codec leaves tensors of one dimension alone in any case.
        """
        spec = codec_spec(self.codec) if codec is None else codec
        return NONE if self._rule_against(name, shape, spec) else spec

    def rules_against(
        self, shapes: Mapping[str, Sequence[int]], codec: CodecSpec
    ) -> Mapping[str, int]:
        """Return the rules by which parameters are left alone, and how many by each."""
        rules = (self._rule_against(name, shape, codec) for name, shape in shapes.items())
        return Counter(rule for rule in rules if rule)

    def _rule_against(self, name: str, shape: Sequence[int], codec: CodecSpec) -> str:
        """Return the first rule by which a parameter is left alone, as words; "": none."""
        if math.prod(shape) < self.smallest:
            return f"of fewer than {self.smallest:,} elements"
        if len(shape) < 2 and (codec.traits.matrices or not self.one_dimension):
            return "of one dimension"
        if any(name_matches(name, pattern) for pattern in self.except_for):
            return "named in except_for"
        return ""

    def feeds_back(self, codec: CodecSpec) -> bool:
        """Return whether a parameter with this codec keeps a residual."""
        return codec.traits.feedback if self.feedback is None else self.feedback


def reason_against_patterns(policy: Policy, names: Collection[str]) -> str | None:
    """Return which patterns of `except_for` match none of a model's parameters; None: all do.

    Parameters
    ----------
    names : of all parameters, frozen ones, too.
    """
    unmatched = [
        pattern
        for pattern in policy.except_for
        if not any(name_matches(name, pattern) for name in names)
    ]
    if not unmatched:
        return None
    return (
        f"except_for has {', '.join(map(repr, unmatched))}, which match no parameter of the model, "
        f"needs names such as {next(iter(names), '')!r}"
    )


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the (rows, columns) in which matrix codecs see a tensor: all but the first joined."""
    return shape[0], math.prod(shape[1:])


def low_rank(rows: int, columns: int, rank: int) -> int:
    """Return the rank of a matrix's factors: at most its own, 0 if they are not fewer values."""
    rank = min(rank, rows, columns)
    return rank if rank * (rows + columns) < rows * columns else 0
