"""The step's model: equation 4.1's overlap of buckets, for every codec, in and after the backward.

The paper's model (4.2.4.1) is ``max(gamma T_comp, (k-1) T_comm(b)) + T_comm(b_last)``. Here every
bucket has the time at which it is ready, and exchanges are serial: one begins when its bucket is
ready and the exchange before has ended. With equal buckets that are ready from the beginning, and
the last at the end, both are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.network import NetworkTimes
from headrace.compression.policy import Policy
from headrace.compression.profile import CodecTiming, CompressionProfile, ModelTensor
from headrace.compression.traffic import PayloadTransfer, buffer_bytes, sent_bytes, transfers

DURING, AFTER = "during", "after"
MODES = (DURING, AFTER)
"""Gradients are compressed and exchanged in the backward pass, or after it (4.2.1)."""


_PIECE_BYTES = 1 << 20
"""Payload that is sent while the next is encoded: smaller ones travel together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRound:
    """A part of a bucket's exchange: what is computed before it, and what travels.

    Attributes
    ----------
    exchanges : (collective, payload bytes of a rank), one after the other.
    """

    compute_us: float
    exchanges: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """A bucket's exchange.

    Attributes
    ----------
    ready_us : after the backward pass began.
    rounds : one after the other.
    decode_us : computed when the payloads of the last round have arrived.
    """

    ready_us: float
    rounds: tuple[BucketRound, ...]
    decode_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """All work of a step with one codec.

    Attributes
    ----------
    forward_us : what is outside the backward pass, the optimizer included.
    buckets : in the order of their exchanges.
    decoded_last : buckets are decoded when all have arrived, so that a step is undone as a whole
        if it fails; else each when it has arrived.
    memory_bytes : residuals and payloads, beside the gradients.
    """

    codec: CodecSpec
    mode: str
    forward_us: float
    backward_us: float
    gamma: float
    contention: float
    buckets: tuple[BucketWork, ...]
    decoded_last: bool
    memory_bytes: int

    def scaled(
        self, *, exchanged: float = 1.0, coding: float = 1.0, compute: float = 1.0
    ) -> "StepWork":
        """Return the step with payloads, codec times and times of compute times these factors."""
        return replace(
            self,
            forward_us=self.forward_us * compute,
            backward_us=self.backward_us * compute,
            buckets=tuple(
                BucketWork(
                    ready_us=bucket.ready_us * compute,
                    rounds=tuple(
                        BucketRound(
                            compute_us=exchange.compute_us * coding,
                            exchanges=tuple(
                                (kind, n * exchanged) for kind, n in exchange.exchanges
                            ),
                        )
                        for exchange in bucket.rounds
                    ),
                    decode_us=bucket.decode_us * coding,
                )
                for bucket in self.buckets
            ),
        )

    @property
    def exchanged_bytes(self) -> float:
        """Payload bytes of a rank in a step."""
        return sum(payload_bytes for _, payload_bytes in self._exchanges())

    def sent_bytes(self, workers: int) -> float:
        """Return the bytes that leave a rank in a step; see `headrace.compression.traffic`."""
        return sum(
            sent_bytes(
                PayloadTransfer(collective=collective, payload_bytes=round(payload_bytes)), workers
            )
            for collective, payload_bytes in self._exchanges()
        )

    def _exchanges(self) -> list[tuple[str, float]]:
        rounds = (part for bucket in self.buckets for part in bucket.rounds)
        return [exchange for part in rounds for exchange in part.exchanges]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Predicted time of a step, and its parts.

    Attributes
    ----------
    codec_us : of encoding and decoding, wherever it is.
    communication_us : of all exchanges, wherever they are.
    exposed_us : by which the step is longer than its forward and backward pass alone.
    """

    total_us: float
    codec_us: float
    communication_us: float
    exposed_us: float


def step_work(
    profile: CompressionProfile,
    codec: CodecSpec,
    workers: int,
    mode: str,
    policy: Policy | None = None,
) -> StepWork:
    """Return the work of a profile's step with a codec.

    Parameters
    ----------
    policy : which parameters are compressed; its codec is replaced (default: `Policy`'s).

    Raises
    ------
    CompressionError : for a mode that there is not, or if the profile does not have the codec.
    """
    if mode not in MODES:
        raise CompressionError(f"mode is {mode!r}, needs one of {', '.join(MODES)}")
    rules = policy or Policy()
    groups = list(zip(profile.bucket_tensors(), (b.ready_us for b in profile.buckets), strict=True))
    if mode == AFTER:
        groups = [(profile.tensors, profile.backward_us)]
    timing = codec_timing(profile, codec)
    matrices = _coded(profile.tensors, codec, rules)[0]
    buckets = tuple(_bucket_work(group, at, codec, workers, rules, timing) for group, at in groups)
    residual = 4 * _elements(matrices) if rules.feeds_back(codec) else 0
    buffers = buffer_bytes(codec, [tensor.shape for tensor in matrices], workers)
    return StepWork(
        codec=codec,
        mode=mode,
        forward_us=profile.forward_us + profile.other_us,
        backward_us=profile.backward_us,
        gamma=profile.gamma,
        contention=profile.contention,
        buckets=buckets,
        decoded_last=rules.feeds_back(codec),
        memory_bytes=residual + buffers,
    )


def codec_timing(profile: CompressionProfile, codec: CodecSpec) -> CodecTiming | None:
    """Return the profile's times of a codec; None for the codec "none", which needs none.

    Raises
    ------
    CompressionError : if the profile does not have it.
    """
    if codec == NONE:
        return None
    timing = profile.codecs.get(str(codec))
    if timing is None:
        raise CompressionError(
            f"codec {codec} is not in the profile of {profile.model}, needs one of "
            f"{', '.join(['none', *profile.codecs])}; measure it, or add its times to the profile"
        )
    return timing


def _elements(tensors: Sequence[ModelTensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _coded(
    tensors: Sequence[ModelTensor], codec: CodecSpec, rules: Policy
) -> tuple[list[ModelTensor], list[ModelTensor]]:
    """Return the tensors that are compressed, and those that are sent as they are."""
    coded = [t for t in tensors if rules.codec_of(t.name, t.shape, codec) != NONE]
    names = {tensor.name for tensor in coded}
    return coded, [tensor for tensor in tensors if tensor.name not in names]


def _bucket_work(
    tensors: Sequence[ModelTensor],
    ready_us: float,
    codec: CodecSpec,
    workers: int,
    rules: Policy,
    timing: CodecTiming | None,
) -> BucketWork:
    """Return a bucket's exchange: requests of one kind and phase travel as one."""
    coded, plain = _coded(tensors, codec, rules)
    sizes: dict[tuple[int, str], float] = {}
    moved = transfers(codec, [tensor.shape for tensor in coded], workers) if coded else ()
    for transfer in moved:
        key = (transfer.phase, transfer.collective)
        sizes[key] = sizes.get(key, 0) + transfer.payload_bytes
    if plain:
        key = (0, "allreduce")
        sizes[key] = sizes.get(key, 0) + sum(tensor.gradient_bytes for tensor in plain)
    phases = sorted({phase for phase, _ in sizes})
    computed, decode = [0.0] * len(phases), 0.0
    if timing is not None and coded:
        kinds = {transfer.collective for transfer in moved}
        computed, decode = _coding_us(timing, _elements(coded), workers, kinds, len(phases))
    return BucketWork(
        ready_us=ready_us,
        rounds=tuple(
            BucketRound(
                compute_us=compute_us,
                exchanges=tuple(
                    (kind, sizes[at, kind]) for at, kind in sorted(sizes) if at == phase
                ),
            )
            for phase, compute_us in zip(phases, computed, strict=True)
        ),
        decode_us=decode,
    )


def _coding_us(
    timing: CodecTiming, elements: int, workers: int, kinds: set[str], phases: int
) -> tuple[list[float], float]:
    """Return the times before each round and after the last: they follow from the exchanges.

    Sharded: all is encoded; a shard of each rank is decoded, as many elements in all, and the sum's
    shard is encoded; all is decoded. Gathered: the payloads of all ranks are decoded. Summed on the
    way: once each; a profile does not tell the rounds of a codec apart.
    """
    encode, decode = timing.encoding_us(elements), timing.decoding_us(elements)
    if "all_to_all" in kinds:
        return [encode, decode + timing.encoding_us(elements / workers)], decode
    decodings = workers if "allgather" in kinds else 1
    return [encode / phases] * phases, decodings * decode


def step_time(work: StepWork, network: NetworkTimes) -> StepTime:
    """Predict the time of a step.

    One thread takes bucket after bucket: it encodes, and sends what is encoded while it encodes the
    rest. A codec's time beside the backward pass delays that by `contention` times it.
    """
    gamma = work.gamma if work.mode == DURING else 1.0
    backward = gamma * work.backward_us
    free = delay = coding = sending = last = 0.0
    for bucket in work.buckets:
        start = max(gamma * bucket.ready_us + delay, free)
        free, codec = start, sum(exchange.compute_us for exchange in bucket.rounds)
        for exchange in bucket.rounds:
            sent, took = _round_us(exchange, network)
            free, sending = free + took, sending + sent
        if work.decoded_last:
            last += bucket.decode_us
        else:
            free, codec = free + bucket.decode_us, codec + bucket.decode_us
        coding += codec
        delay += _delay_us(codec, backward + delay - start, work.contention)
    compute = work.forward_us + work.backward_us
    total = work.forward_us + max(backward + delay, free) + last
    return StepTime(
        total_us=total,
        codec_us=coding + last,
        communication_us=sending,
        exposed_us=total - compute,
    )


def _round_us(work: BucketRound, network: NetworkTimes) -> tuple[float, float]:
    """Return the times of a round's exchanges, and of the round.

    It is a pipeline of pieces: nothing is sent while the first is encoded, and nothing is encoded
    while the last is sent.
    """
    sent = sum(network.exchange_us(kind, size) for kind, size in work.exchanges)
    share = _PIECE_BYTES / max(_PIECE_BYTES, sum(size for _, size in work.exchanges))
    if share == 1 or not work.compute_us:
        return sent, work.compute_us + sent
    tail = sum(network.exchange_us(kind, size * share) for kind, size in work.exchanges)
    return sent, max(work.compute_us + tail, sent + work.compute_us * share)


def _delay_us(codec: float, left: float, contention: float) -> float:
    """Return by how much a codec's work delays a backward pass with `left` us to go.

    Up to a contention of 1 the pass goes on at the rest of its speed until the codec is done. Above
    it the two slow each other, which the paper found (4.2.1), for as long as both are at work.
    """
    if left <= 0:
        return 0.0
    if contention >= 1:
        return codec + (contention - 1) * min(codec, left)
    return min(contention * codec, left * contention / (1 - contention))


def alone_us(work: StepWork) -> float:
    """Return the time of the step of one worker, which linear scaling would keep."""
    return work.forward_us + work.backward_us
