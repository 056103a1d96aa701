"""Families of codecs, and their specifications as text: ``topk:1%``, ``powersgd:4+bf16``.

A specification is ``family[:parameter][+wire]``: the parameter is the family's (rank, share of the
elements that is sent, bits), the wire is the type in which values that would be float32 are sent.
Nothing here imports torch, so that plans are made without it.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from headrace.compression.errors import CompressionError
from headrace.facades import public_value

WIRES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Types of values on the wire, and their bytes."""


@public_value("headrace.compression")
class Family:
    """A family of codecs.

    Attributes
    ----------
    parameter : its meaning: ``rank``, ``bits``, ``share`` (of the elements, above 0 to 1) or "".
    low, high : bounds of the parameter.
    default : the parameter if none is given.
    matrices : whether it encodes matrices, one by one; else vectors of any tensors together.
    feedback : whether what is not sent is added to the next gradient (error feedback) by default.
    unbiased : whether the expectation of the decoded values is the input (without feedback).
    wires : whether values can be sent in another type (``+bf16``).
    source : where it is from.
    """

    parameter: str = ""
    low: float = 0
    high: float = 0
    default: float = 0
    matrices: bool = False
    feedback: bool = True
    unbiased: bool = False
    wires: bool = False
    source: str


def _sparse(source: str) -> Family:
    return Family(parameter="share", low=0, high=1, default=0.01, wires=True, source=source)


FAMILIES: Mapping[str, Family] = {
    "none": Family(feedback=False, source="float32 as it is"),
    "bf16": Family(feedback=False, source="bfloat16, rounded to nearest"),
    "fp16": Family(feedback=False, source="float16, rounded to nearest"),
    "fp8": Family(source="float8 e4m3, a scale for each bucket of values"),
    "minmax": Family(
        parameter="bits", low=2, high=8, default=4, source="bucketed min-max quantisation (CGX)"
    ),
    "qsgd": Family(
        parameter="bits",
        low=2,
        high=8,
        default=2,
        feedback=False,
        unbiased=True,
        source="QSGD: stochastic levels of the bucket's norm (Alistarh et al., 2017)",
    ),
    "terngrad": Family(
        feedback=False,
        unbiased=True,
        source="TernGrad: -1, 0 or 1 times a scale (Wen et al., 2017)",
    ),
    "sign": Family(source="SignSGD with majority vote (Bernstein et al., 2018)"),
    "topk": _sparse("TopK by magnitude (Aji and Heafield, 2017)"),
    "mstopk": _sparse("MSTop-K: threshold by bisection (Shi et al., 2021)"),
    "dgc": _sparse("DGC: momentum correction, sampled threshold (Lin et al., 2018)"),
    "randomk": _sparse("RandomK: one seed on all ranks"),
    "powersgd": Family(
        parameter="rank",
        low=1,
        high=256,
        default=4,
        matrices=True,
        wires=True,
        source="PowerSGD: one step of subspace iteration (Vogels et al., 2019)",
    ),
    "atomo": Family(
        parameter="rank",
        low=1,
        high=256,
        default=4,
        matrices=True,
        feedback=False,
        unbiased=True,
        wires=True,
        source="ATOMO: sampled singular values (Wang et al., 2018)",
    ),
}


@public_value("headrace.compression")
class CodecSpec:
    """A codec: its family, parameter and type of values on the wire. ``str`` gives its text.

    Raises
    ------
    CompressionError : an unknown family, a parameter out of range, a wire that it does not have.
    """

    family: str
    parameter: float = 0
    wire: str = "fp32"

    def __post_init__(self) -> None:
        family = FAMILIES.get(self.family)
        if family is None:
            raise CompressionError(f"codec is {self.family!r}, needs one of {', '.join(FAMILIES)}")
        if family.parameter:
            is_count = family.parameter != "share"
            above = self.parameter >= family.low if is_count else self.parameter > family.low
            if not above or self.parameter > family.high or (is_count and self.parameter % 1):
                kind = "a whole number " if is_count else "above "
                raise CompressionError(
                    f"codec {self.family}: {family.parameter} is {self.parameter:g}, needs {kind}"
                    f"{'from ' if is_count else ''}{family.low:g} to {family.high:g}"
                )
        elif self.parameter:
            raise CompressionError(
                f"codec {self.family} has no parameter, found {self.parameter:g}"
            )
        if self.wire not in WIRES or (self.wire != "fp32" and not family.wires):
            allowed = ", ".join(WIRES if family.wires else ["fp32"])
            raise CompressionError(
                f"codec {self.family}: values are sent as {self.wire!r}, needs {allowed}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the codec of a text such as ``none``, ``topk:1%`` or ``powersgd:4+bf16``."""
        body, _, wire = text.strip().lower().partition("+")
        family, colon, parameter = body.partition(":")
        value = FAMILIES[family].default if family in FAMILIES else 0.0
        if colon:
            try:
                value = float(parameter.removesuffix("%")) / (100 if parameter[-1:] == "%" else 1)
            except ValueError:
                raise CompressionError(
                    f"codec {text!r}: parameter is {parameter!r}, needs a number"
                ) from None
        return cls(family=family, parameter=value, wire=wire or "fp32")

    @property
    def traits(self) -> Family:
        """Return the properties of its family."""
        return FAMILIES[self.family]

    @property
    def wire_bytes(self) -> int:
        """Return the bytes of a value that is sent uncoded."""
        return WIRES[self.wire]

    def __str__(self) -> str:
        parameter = ""
        if self.traits.parameter == "share":
            percent = f"{100 * self.parameter:.6g}"
            is_exact = float(percent) / 100 == self.parameter  # as `parse` reads it
            parameter = f":{percent}%" if is_exact else f":{float(self.parameter)!r}"
        elif self.traits.parameter:
            parameter = f":{self.parameter:g}"
        return self.family + parameter + ("" if self.wire == "fp32" else f"+{self.wire}")


NONE = CodecSpec(family="none")


def codec_spec(codec: "str | CodecSpec") -> CodecSpec:
    """Return a codec given as a specification or as its text."""
    if not isinstance(codec, str | CodecSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompressionError(f"codec is {codec!r}, needs a text such as powersgd:4")
    return codec if isinstance(codec, CodecSpec) else CodecSpec.parse(codec)


def codec_specs(levels: Sequence[str | CodecSpec]) -> tuple[CodecSpec, ...]:
    """Return the codecs of levels, which are a list, not a text."""
    if isinstance(levels, str):
        raise CompressionError(f"levels is the text {levels!r}, needs a list of codecs")
    return tuple(map(codec_spec, levels))
