"""The adviser: every codec's step time on one network, the fastest, and why."""

from collections.abc import Sequence

from headrace.artifact_value import stored_value
from headrace.compression.bounds import CodecAccuracy, codec_accuracy
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.network import NetworkTimes
from headrace.compression.plan.step import (
    AFTER,
    DURING,
    MODES,
    StepTime,
    StepWork,
    alone_us,
    step_time,
    step_work,
)
from headrace.compression.plan.whatif import break_even, fewer_exchanges, needed_compression
from headrace.compression.policy import Policy
from headrace.compression.profile import CompressionProfile
from headrace.compression.traffic import TRANSFERS
from headrace.units import ms, size

LOCAL_STEPS = 16
"""Steps between averages in the row for fewer exchanges: post-local SGD's largest (H = 16)."""


@stored_value("headrace.compression", CompressionError)
class AdviceRow:
    """A codec's predicted step.

    Attributes
    ----------
    codec : its specification's text.
    mode : ``during`` or ``after`` the backward pass, the faster one; ``every 16 steps`` for fewer
        exchanges.
    payload_bytes : of a rank in a step; `row_sent_bytes` tells what leaves a rank.
    memory_bytes : residuals and payloads; `fits`: with them the step's memory is enough, as far as
        the device's is known.
    break_even_bytes_per_s : the bandwidth at which the step is as long as without compression; None
        if there is none near.
    """

    codec: str
    mode: str
    step_us: float
    codec_us: float
    communication_us: float
    exposed_us: float
    payload_bytes: float
    memory_bytes: int
    fits: bool
    break_even_bytes_per_s: float | None = None


@stored_value("headrace.compression", CompressionError)
class Advice:
    """Predictions for a profile on a network.

    Attributes
    ----------
    rows : fastest first; that of fewer exchanges is last.
    winner : the fastest row that fits, fewer exchanges aside: they change the algorithm.
    alone_us : the step of one worker.
    needed_compression : of an ideal codec, for near-linear scaling; None: latency is too long.
    why : the figures that decide, in a sentence.
    """

    rows: tuple[AdviceRow, ...]
    winner: AdviceRow
    alone_us: float
    needed_compression: float | None
    why: str


def advise(
    profile: CompressionProfile,
    network: NetworkTimes,
    *,
    codecs: Sequence[CodecSpec] = (),
    policy: Policy | None = None,
    memory_bytes: int | None = None,
    local_steps: int = LOCAL_STEPS,
    break_evens: bool = True,
) -> Advice:
    """Predict every codec's step, and choose.

    Parameters
    ----------
    codecs : to compare with none (default: those of the profile).
    memory_bytes : of the device (default: the profile's; 0: not known).
    local_steps : between averages in the row for fewer exchanges.
    break_evens : whether break-even bandwidths are computed, too.

    Raises
    ------
    CompressionError : for a codec that the profile does not have, or impossible options.
    """
    if not 1 <= local_steps <= 1 << 20:
        raise CompressionError(f"local steps is {local_steps}, needs 1 to {1 << 20}")
    capacity = profile.memory_bytes if memory_bytes is None else memory_bytes
    plain = step_work(profile, NONE, network.workers, DURING, policy)
    rows = [_row(plain, network, profile, capacity)]
    for codec in dict.fromkeys(codecs or known_codecs(profile)):
        if codec == NONE:
            continue
        work = min(
            (step_work(profile, codec, network.workers, mode, policy) for mode in MODES),
            key=lambda candidate: step_time(candidate, network).total_us,
        )
        even = break_even(work, plain, network) if break_evens else None
        rows.append(_row(work, network, profile, capacity, even))
    rows.sort(key=lambda row: row.step_us)
    fitting = [row for row in rows if row.fits]
    if not fitting:
        raise CompressionError(
            f"memory is {size(capacity)}, needs more than {size(profile.used_bytes)} of the step"
        )
    uncompressed = next(row for row in rows if row.codec == str(NONE))
    return Advice(
        rows=(*rows, _fewer(plain, network, profile, capacity, local_steps)),
        winner=fitting[0],
        alone_us=alone_us(plain),
        needed_compression=needed_compression(plain, network),
        why=_why(fitting, uncompressed, rows, plain),
    )


def row_sent_bytes(row: AdviceRow, profile: CompressionProfile, workers: int) -> float:
    """Return the bytes that leave a rank in a step of a row."""
    mode = row.mode if row.mode in MODES else DURING
    work = step_work(profile, CodecSpec.parse(row.codec), workers, mode)
    return work.sent_bytes(workers) * row.payload_bytes / work.exchanged_bytes


def line_to_write(row: AdviceRow) -> str:
    """Return the line of a training script by which a row's codec is used."""
    if CodecSpec.parse(row.codec) == NONE:
        return "none: DistributedDataParallel as it is"
    when = "" if row.mode == AFTER else f', when="{row.mode}"'
    return f'hook = headrace.compression.ddp_hook(model, "{row.codec}"{when})'


def row_accuracy(row: AdviceRow, profile: CompressionProfile) -> CodecAccuracy:
    """Return the effect of a row's codec, or of averages that are made more rarely."""
    if row.mode not in MODES:
        return CodecAccuracy(text="rare averages", gentle=False)
    shapes = {tensor.name: tensor.shape for tensor in profile.tensors}
    return codec_accuracy(CodecSpec.parse(row.codec), Policy(), shapes)


def fastest_gentle(advice: Advice, profile: CompressionProfile) -> AdviceRow:
    """Return the fastest row that fits and whose codec is gentle; "none" is, and needs no memory.

    See `headrace.compression.bounds.GENTLE_ERROR`.
    """
    return next(row for row in advice.rows if row.fits and row_accuracy(row, profile).gentle)


def known_codecs(profile: CompressionProfile) -> list[CodecSpec]:
    """Return the profile's codecs whose bytes are known."""
    codecs = [CodecSpec.parse(name) for name in profile.codecs]
    return [codec for codec in codecs if codec.family in TRANSFERS]


def _row(
    work: StepWork,
    network: NetworkTimes,
    profile: CompressionProfile,
    capacity: int,
    even: float | None = None,
) -> AdviceRow:
    time: StepTime = step_time(work, network)
    return AdviceRow(
        codec=str(work.codec),
        mode=work.mode,
        step_us=time.total_us,
        codec_us=time.codec_us,
        communication_us=time.communication_us,
        exposed_us=time.exposed_us,
        payload_bytes=work.exchanged_bytes,
        memory_bytes=work.memory_bytes,
        fits=not capacity or profile.used_bytes + work.memory_bytes <= capacity,
        break_even_bytes_per_s=even,
    )


def _fewer(
    plain: StepWork,
    network: NetworkTimes,
    profile: CompressionProfile,
    capacity: int,
    local_steps: int,
) -> AdviceRow:
    """Return the row of averages once in `local_steps` steps; a copy of the weights is kept."""
    time = fewer_exchanges(plain, network, local_steps)
    return AdviceRow(
        codec=str(NONE),
        mode=f"every {local_steps} steps",
        step_us=time.total_us,
        codec_us=0.0,
        communication_us=time.communication_us,
        exposed_us=time.exposed_us,
        payload_bytes=plain.exchanged_bytes / local_steps,
        memory_bytes=profile.gradient_bytes,
        fits=not capacity or profile.used_bytes + profile.gradient_bytes <= capacity,
    )


def _why(
    fitting: Sequence[AdviceRow], none: AdviceRow, rows: Sequence[AdviceRow], plain: StepWork
) -> str:
    """Return the figures that decide, in a sentence or two."""
    best = fitting[0]
    hidden = (
        f"without compression a payload of {size(round(none.payload_bytes))} takes "
        f"{ms(none.communication_us)} of communication beside {ms(plain.backward_us)} of backward "
        f"pass, and makes the step {ms(none.exposed_us)} longer"
    )
    if best.codec == none.codec:
        others = [row for row in fitting if row.codec != none.codec]
        text = f"{hidden}, less than any codec's time"
        if others:
            text = (
                f"{hidden}; the next best, {others[0].codec} {others[0].mode} the backward pass, "
                f"makes it {ms(others[0].exposed_us)} longer: {ms(others[0].codec_us)} of encoding "
                f"and decoding, {ms(others[0].communication_us)} of communication"
            )
    else:
        text = (
            f"{hidden}; with {best.codec} {best.mode} the backward pass it is "
            f"{ms(best.exposed_us)} longer: {ms(best.codec_us)} of encoding and decoding, "
            f"{ms(best.communication_us)} of communication of a payload of "
            f"{size(round(best.payload_bytes))}"
        )
    faster = [row.codec for row in rows if not row.fits and row.step_us < best.step_us]
    return text + (f"; faster but out of memory: {', '.join(faster)}" if faster else "")
