"""Bounds of the codecs' errors, and whether error feedback over a codec is stable: pure functions.

Error feedback adds what a codec C left out of x to the next gradient. The residual stays bounded if
C is a contraction: ``E ||C(x) - x||^2 <= (1 - delta) ||x||^2`` with delta above 0, in some norm
(Stich et al., 2018, "Sparsified SGD with Memory"; Karimireddy et al., 2019, "Error Feedback Fixes
SignSGD"). Quantisers to a bucket's range contract in the maximum norm: in the Euclidean one they do
not, as all elements may be off by as much as the largest allow.

Sharded codecs encode twice: each rank its values, and a shard's owner the mean, whose error is in
the owner's residual. A relative error of e becomes at most ``(1 + e)^2 - 1``, of norms if encoding
is deterministic, of variances if it is unbiased. That is the error on one rank, and also what
feedback multiplies an owner's residual by.

All bounds are of values whose magnitudes float32 and the wire's type have with full precision.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy, low_rank, matrix_shape
from headrace.compression.traffic import PAYLOAD_LAYOUTS, kept_elements

_ROUNDED = {"fp32": 0.0, "bf16": 2.0**-16, "fp16": 2.0**-22}
"""Squared relative error of a value on the wire, rounded to nearest."""
_FACTORS_SHARE = 1 - 2.0**-6  # of the energy of exact factors that those of 16 bits still have
_BISECTED = (1 + 2.0**-7) ** 2  # of squares, to which the threshold of ``mstopk`` is known
_FULL_SAMPLE = 1 << 12  # elements up to which the sample of ``dgc`` is the vector
_E4M3_ROUNDED = 2.0**-8  # squared relative error of a normal number of 4 significant bits
_E4M3_SMALL = (2.0**-10 / 448) ** 2  # squared error of a subnormal one, over the largest squared


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBound:
    """Bound of ``E ||C(x) - x||^2 / ||x||^2``.

    Attributes
    ----------
    error : the bound; below 1 the codec is a contraction, by ``delta = 1 - error``.
    norm : ``euclidean`` or ``maximum``.
    """

    error: float
    norm: str = "euclidean"

    @property
    def contracts(self) -> bool:
        """True if error feedback over the codec is stable."""
        return self.error < 1


GENTLE_ERROR = 0.05
"""Bound up to which a codec counts as gentle: that of ``minmax:4`` is 0.02, of 3 bits 0.09."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecAccuracy:
    """Effect of a codec on gradients.

    Attributes
    ----------
    text : in two or three words.
    gentle : whether the bound of its error is at most `GENTLE_ERROR`.
    """

    text: str
    gentle: bool


def codec_accuracy(
    spec: CodecSpec, policy: Policy, shapes: Mapping[str, Sequence[int]]
) -> CodecAccuracy:
    """Return a codec's effect on the parameters of these names and shapes, by its largest bound."""
    coded = [shape for name, shape in shapes.items() if policy.codec_of(name, shape, spec) == spec]
    error = max((error_bound(spec, shape).error for shape in coded), default=0.0)
    gentle = error <= GENTLE_ERROR
    if spec.family == "none":
        return CodecAccuracy(text="exact", gentle=True)
    if policy.feeds_back(spec):
        text = "gentle, with feedback" if gentle else "harsh, with feedback"
    elif spec.traits.unbiased:
        text = "unbiased, little noise" if gentle else "unbiased, noisy"
    else:
        text = "rounded" if gentle else "harsh"
    return CodecAccuracy(text=text, gentle=gentle)


def error_bound(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    """Return the bound of a codec's error with feedback, for one tensor of this shape.

    Raises
    ------
    CompressionError : a family without bound.
    """
    family = BOUNDS.get(spec.family)
    if family is None:
        raise CompressionError(f"codec {spec} has no bound, needs one of {', '.join(BOUNDS)}")
    return family(spec, shape)


def check_feedback(policy: Policy, spec: CodecSpec, name: str, shape: Sequence[int]) -> None:
    """Raise CompressionError if a parameter's residual could grow without bound."""
    if not policy.feeds_back(spec):
        return
    bound = error_bound(spec, shape)
    if bound.contracts:
        return
    remedies = ["leave feedback to the codec (feedback=None)"]
    if spec.traits.parameter == "bits":
        for bits in range(int(spec.parameter) + 1, int(spec.traits.high) + 1):
            finer = CodecSpec(family=spec.family, parameter=bits)
            if error_bound(finer, shape).contracts:
                remedies.append(f"{finer} or more bits")
                break
    remedies.append("minmax:4, whose residuals are bounded")
    raise CompressionError(
        f"codec {spec} of parameter {name!r} has feedback=True, and an error of up to "
        f"{bound.error:.3g} times the squared norm of what it encodes, needs one below 1: "
        f"residuals would grow without bound. Needs one of: {'; '.join(remedies)}"
    )


def _cast(spec: CodecSpec, _shape: Sequence[int]) -> ErrorBound:
    return ErrorBound(error=_ROUNDED.get("fp32" if spec.family == "none" else spec.family, 0.0))


def _bucket(spec: CodecSpec, shape: Sequence[int]) -> int:
    return min(PAYLOAD_LAYOUTS[spec.family](spec).bucket, math.prod(shape))


def _float8(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    once = math.sqrt(_E4M3_ROUNDED + _bucket(spec, shape) * _E4M3_SMALL)
    return ErrorBound(error=((1 + once) ** 2 - 1) ** 2)


def _ranges(spec: CodecSpec, _shape: Sequence[int]) -> ErrorBound:
    """Half a step of a range that is at most twice the largest magnitude."""
    once = 1 / ((1 << int(spec.parameter)) - 1)
    return ErrorBound(error=((1 + once) ** 2 - 1) ** 2, norm="maximum")


def _levels(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    """Variance ``(norm / s)^2 p (1 - p)`` of each element (Alistarh et al., 2017, Lemma 3.1).

    p (1 - p) is at most a quarter, and at most ``s |x| / norm``.
    """
    levels = (1 << (PAYLOAD_LAYOUTS[spec.family](spec).bits - 1)) - 1
    bucket = _bucket(spec, shape)
    once = min(bucket / (4 * levels**2), math.sqrt(bucket) / levels)
    return ErrorBound(error=(1 + once) ** 2 - 1)


def _ternary(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    """Variance ``max |x| sum |x| - sum x^2``, largest for one element of sqrt(n) + 1 others'."""
    once = (math.sqrt(_bucket(spec, shape)) - 1) / 2
    return ErrorBound(error=(1 + once) ** 2 - 1)


def _signs(_spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    """The mean magnitude leaves ``1 - (sum |x|)^2 / (n sum x^2)``."""
    return ErrorBound(error=1 - 1 / math.prod(shape))


def _largest(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    elements = math.prod(shape)
    sent = kept_elements(spec, elements)
    if spec.family == "dgc" and elements > _FULL_SAMPLE:
        sent = 1  # those above the threshold of a sample in which one element may be all there is
    share = sent / elements
    if spec.family == "mstopk":
        share = sent / (sent + (elements - sent) * _BISECTED)
    return ErrorBound(error=1 - share * (1 - _ROUNDED[spec.wire]))


def _drawn(spec: CodecSpec, shape: Sequence[int]) -> ErrorBound:
    elements = math.prod(shape)
    interval = math.ceil(elements / kept_elements(spec, elements))
    return ErrorBound(error=1 - (1 - _ROUNDED[spec.wire]) / interval)


def _projected(spec: CodecSpec, shape: Sequence[int], *, largest: bool) -> ErrorBound:
    """A projection to a subspace: the r largest singular values', or that of r random vectors.

    The largest hold r of the shorter side's parts of the squared norm or more; the image of r
    random vectors has in expectation r of the longer side's.
    """
    rows, columns = matrix_shape(shape)
    rank = low_rank(rows, columns, int(spec.parameter))
    if not rank:
        return ErrorBound(error=_ROUNDED[spec.wire])
    share = rank / (min(rows, columns) if largest else max(rows, columns))
    return ErrorBound(error=1 - share * (1.0 if spec.wire == "fp32" else _FACTORS_SHARE))


BOUNDS: Mapping[str, Callable[[CodecSpec, Sequence[int]], ErrorBound]] = {
    **dict.fromkeys(("none", "bf16", "fp16"), _cast),
    "fp8": _float8,
    "minmax": _ranges,
    "qsgd": _levels,
    "terngrad": _ternary,
    "sign": _signs,
    **dict.fromkeys(("topk", "mstopk", "dgc"), _largest),
    "randomk": _drawn,
    "powersgd": lambda spec, shape: _projected(spec, shape, largest=False),
    "atomo": lambda spec, shape: _projected(spec, shape, largest=True),
}
"""Bound of each family; of ``powersgd`` at a cold start: a warm one leaves at most the whole."""
