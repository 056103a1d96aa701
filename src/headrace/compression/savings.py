"""Bytes that codecs save on a model, and the reason where they save none: a pure function."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.compression.families import NONE, WIRES, CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.traffic import sent_bytes, transfers
from headrace.units import size

FLOAT32_BYTES = 4

ParameterShapes = Mapping[str, Sequence[int]]


def reason_without_savings(
    policy: Policy,
    codecs: Iterable[CodecSpec],
    shapes: ParameterShapes,
    ranks: int,
    element_bytes: Mapping[str, int] | None = None,
) -> str | None:
    """Return why none of the codecs makes a rank send less, and the remedy; None: one does.

    Parameters
    ----------
    codecs : that may be used; "none" is not asked to save anything.
    shapes : of the parameters, by name.
    ranks : a group of one, which sends nothing, counts as two.
    element_bytes : of each parameter's gradient; None: 4.
    """
    ranks = max(ranks, 2)
    candidates = [codec for codec in codecs if codec != NONE]
    sizes = dict.fromkeys(shapes, FLOAT32_BYTES) if element_bytes is None else element_bytes
    plain_bytes = _sent_bytes(policy, NONE, shapes, sizes, ranks)
    if not candidates or not shapes:
        return None
    sent = {codec: _sent_bytes(policy, codec, shapes, sizes, ranks) for codec in candidates}
    codec = min(candidates, key=sent.__getitem__)
    if sent[codec] < plain_bytes:
        return None
    if all(policy.codec_of(name, shape, codec) == NONE for name, shape in shapes.items()):
        rules = policy.rules_against(shapes, codec)
        counts = ", ".join(f"{count} {rule}" for rule, count in rules.items() if count)
        return (
            f"codec {codec} compresses none of {len(shapes)} parameters, all are sent as they are "
            f"({counts}): leave compression out, or change the Policy's smallest, one_dimension or "
            "except_for"
        )
    return (
        f"codec {codec} makes each of {ranks} ranks send {size(round(sent[codec]))} a step, not "
        f"less than the {size(round(plain_bytes))} without compression: {_remedy(codec)}"
    )


def _sent_bytes(
    policy: Policy,
    codec: CodecSpec,
    shapes: ParameterShapes,
    element_bytes: Mapping[str, int],
    ranks: int,
) -> float:
    total = 0.0
    for name, shape in shapes.items():
        spec = policy.codec_of(name, shape, codec)
        sent = sum(sent_bytes(transfer, ranks) for transfer in transfers(spec, [shape], ranks))
        total += sent * element_bytes[name] / FLOAT32_BYTES if spec == NONE else sent
    return total


def _remedy(codec: CodecSpec) -> str:
    if codec.traits.parameter == "share":
        return (
            f"{codec.family}:1 is a share of 100%, {codec.family}:1% a hundredth; entries are sent "
            "with their indices and to every rank: needs a smaller share, or minmax:4"
        )
    if codec.traits.parameter == "rank":
        return "its factors are not smaller than these matrices: needs a lower rank, or minmax:4"
    if codec.family in WIRES:
        return "gradients have 16 bits already: needs minmax:4 or powersgd:4, or none"
    return "needs another codec such as bf16, or none"
