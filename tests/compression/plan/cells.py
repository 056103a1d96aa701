"""A profile whose steps can be computed by hand, and networks for it."""

from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.profile import (
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)

MB = 1_000_000


def profile(
    ready: tuple[float, ...] = (0.0, 0.0, 9000.0), *, gamma: float = 1.0, contention: float = 1.0
) -> CompressionProfile:
    """Return a profile of equal buckets of 1 MB: one matrix of 250 by 1,000 each."""
    return CompressionProfile(
        model="equal",
        device="cpu",
        batch=1,
        tensors=tuple(ModelTensor(name=f"m{i}", shape=(250, 1000)) for i in range(len(ready))),
        buckets=tuple(GradientBucket(tensors=1, ready_us=at) for at in ready),
        forward_us=1000.0,
        backward_us=9000.0,
        gamma=gamma,
        contention=contention,
        codecs={
            "bf16": CodecTiming(elements=(250_000,), encode_us=(100.0,), decode_us=(50.0,)),
            "minmax:8": CodecTiming(elements=(250_000,), encode_us=(400.0,), decode_us=(200.0,)),
            "topk:1%": CodecTiming(elements=(250_000,), encode_us=(500.0,), decode_us=(5.0,)),
            "powersgd:4": CodecTiming(elements=(750_000,), encode_us=(600.0,), decode_us=(90.0,)),
            "sign": CodecTiming(elements=(250_000,), encode_us=(40.0,), decode_us=(20.0,)),
        },
        provenance={"kind": "measured", "source": "a test"},
    )


def ring(workers: int = 4, bytes_per_s: float = 1e9, alpha_us: float = 0.0) -> FormulaNetwork:
    """Return a ring of links."""
    return FormulaNetwork(
        scheme="ring", workers=workers, bandwidth_bytes_per_s=bytes_per_s, alpha_us=alpha_us
    )
