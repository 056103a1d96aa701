"""Bundled profiles: ResNet-50, ResNet-101 and BERT-base on V100 GPUs, from literature.

The shapes are those of the architectures' definitions (He et al., 2015, with torchvision's names;
Devlin et al., 2018, with Hugging Face's). No time is fitted to the paper's cross-overs:

- Compute: NVIDIA's DeepLearningExamples report 367 images/s for ResNet-50 in FP32 on one V100 16 GB
  (PyTorch 21.03), and 8.36 sequences/s of 512 tokens for BERT-large in FP32 on one V100 (PyTorch
  19.07). ResNet-101 and BERT-base have these rates by multiply-adds. The time is proportional to
  the batch, one third is the forward pass, and gradients are ready by the layers' multiply-adds.
- Codecs: the paper's times for ResNet-50 (Table 4.1), for other models in proportion to the
  elements, for other ranks of PowerSGD in proportion to the rank (its orthogonalisation takes the
  rank's columns one by one). The casts are not in the table: bytes read and written at the V100's
  900 GB/s. Nor are minmax and fp8: they have a share of qsgd:2's time, whose passes over memory are
  theirs, as measured on a CPU (``benchmarks/compression/ratios.py``). Such times are marked as
  derived.
- gamma: 1.07, the middle of the paper's 1.04 to 1.1.
- Memory: 16 GiB, of which weights, gradients and the optimizer's state are counted as used;
  activations are not.
"""

import math
from collections.abc import Iterator

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.profile import (
    LITERATURE,
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)

_Layer = tuple[str, tuple[int, ...], float]
"""A parameter in forward order: name, shape, multiply-adds of its layer for one example."""

_RESNET50_PER_S = 367.0
_BERT_LARGE_PER_S = 8.36
_TOKENS = 512
_CLASSES = 1000

_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
"""Bytes at which DDP closes its first bucket, and the others."""

_TABLE_4_1_MS = {
    "mstopk:1%": 103.0,
    "dgc:1%": 221.0,
    "topk:1%": 273.0,
    "randomk:1%": 163.0,
    "sign": 16.0,
    "qsgd:2": 39.0,
    "terngrad": 94.0,
    "powersgd:4": 45.0,
    "atomo:4": 1586.0,
}
_RANKS = (8, 16)
_QSGD_SHARES = {"minmax:4": 0.56, "fp8": 0.25}
"""Time over that of qsgd:2, as torch's operators: medians, of 2^22 elements in one thread."""
_CASTS = {"bf16": 2, "fp16": 2}
_V100_BYTES_PER_S = 900e9
_V100_BYTES = 16 << 30
_GAMMA = 1.07

DERIVED = {
    **{f"powersgd:{rank}": "powersgd:4's time, in proportion to the rank" for rank in _RANKS},
    **dict.fromkeys(_CASTS, "bytes read and written at 900 GB/s"),
    **{
        name: f"{share} of qsgd:2's time, the ratio of torch's operators on a CPU"
        for name, share in _QSGD_SHARES.items()
    },
}
"""Codecs that the literature has no time of, and how theirs is derived."""

SOURCE = (
    "compute: NVIDIA DeepLearningExamples, FP32 on one V100 (ResNet-50: 367 images/s; BERT-large, "
    "512 tokens: 8.36 sequences/s), other models by multiply-adds, in proportion to the batch; "
    "codecs: the paper's times (Table 4.1: ResNet-50, V100), in proportion to the elements, "
    "others derived; gamma: 4.2.4.1's range; memory: without activations"
)


def _resnet(blocks: tuple[int, int, int, int]) -> Iterator[_Layer]:
    """Yield the parameters of a ResNet of bottleneck blocks, for images of 224 x 224."""

    def convolution(name: str, inner: int, outer: int, kernel: int, side: int) -> Iterator[_Layer]:
        norm = name.replace("conv", "bn") if "conv" in name else f"{name.removesuffix('.0')}.1"
        yield f"{name}.weight", (outer, inner, kernel, kernel), inner * outer * (kernel * side) ** 2
        yield f"{norm}.weight", (outer,), 0.0
        yield f"{norm}.bias", (outer,), 0.0

    yield from convolution("conv1", 3, 64, 7, 112)
    inner, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            before = side
            if stage and not block:
                side //= 2
            yield from convolution(f"{name}.conv1", inner, width, 1, before)
            yield from convolution(f"{name}.conv2", width, width, 3, side)
            yield from convolution(f"{name}.conv3", width, 4 * width, 1, side)
            if not block:
                yield from convolution(f"{name}.downsample.0", inner, 4 * width, 1, side)
            inner = 4 * width
    yield "fc.weight", (_CLASSES, inner), float(_CLASSES * inner)
    yield "fc.bias", (_CLASSES,), 0.0


def _bert(layers: int, width: int) -> Iterator[_Layer]:
    """Yield the parameters of BERT's encoder with its pooler, for sequences of 512 tokens."""

    def dense(name: str, inner: int, outer: int, extra: float = 0.0) -> Iterator[_Layer]:
        yield f"{name}.weight", (outer, inner), float(_TOKENS * inner * outer) + extra
        yield f"{name}.bias", (outer,), 0.0

    def norm(name: str) -> Iterator[_Layer]:
        yield f"{name}.LayerNorm.weight", (width,), 0.0
        yield f"{name}.LayerNorm.bias", (width,), 0.0

    for table, rows in (("word", 30522), ("position", _TOKENS), ("token_type", 2)):
        yield f"embeddings.{table}_embeddings.weight", (rows, width), 0.0
    yield from norm("embeddings")
    scores = 2.0 * _TOKENS**2 * width  # queries by keys, weights by values
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key"):
            yield from dense(f"{name}.attention.self.{part}", width, width)
        yield from dense(f"{name}.attention.self.value", width, width, scores)
        yield from dense(f"{name}.attention.output.dense", width, width)
        yield from norm(f"{name}.attention.output")
        yield from dense(f"{name}.intermediate.dense", width, 4 * width)
        yield from dense(f"{name}.output.dense", 4 * width, width)
        yield from norm(f"{name}.output")
    yield "pooler.dense.weight", (width, width), float(width * width)
    yield "pooler.dense.bias", (width,), 0.0


def _work(layers: Iterator[_Layer]) -> float:
    return sum(multiply_adds for _, _, multiply_adds in layers)


def _resnet50_work() -> float:
    return _RESNET50_PER_S * _work(_resnet((3, 4, 6, 3)))


def _bert_work() -> float:
    return _BERT_LARGE_PER_S * _work(_bert(24, 1024))


MODELS = {
    "resnet50": (lambda: _resnet((3, 4, 6, 3)), _resnet50_work, 64, 3),
    "resnet101": (lambda: _resnet((3, 4, 23, 3)), _resnet50_work, 64, 3),
    "bert-base": (lambda: _bert(12, 768), _bert_work, 12, 4),
}
"""Parameters, multiply-adds per second of the device, the paper's batch, and copies of the weights
that a step holds: weights, gradients, and the optimizer's one (momentum) or two (Adam), by model.
"""


def bundled_profile(model: str, batch: int | None = None) -> CompressionProfile:
    """Return the profile of a bundled model.

    Parameters
    ----------
    batch : of one rank (default: the paper's).

    Raises
    ------
    CompressionError : if there is no such model, or for an impossible batch.
    """
    if model not in MODELS:
        raise CompressionError(
            f"bundled model is {model!r}, needs one of {', '.join(MODELS)}, or a profile's file"
        )
    definition, speed, papers_batch, copies = MODELS[model]
    examples = papers_batch if batch is None else batch
    if not 1 <= examples <= 1 << 16:
        raise CompressionError(f"batch is {examples}, needs 1 to {1 << 16}")
    layers = list(definition())
    step_us = examples * _work(iter(layers)) / speed() * 1e6
    backward_us = step_us * 2 / 3
    layers.reverse()
    tensors = tuple(ModelTensor(name=name, shape=shape) for name, shape, _ in layers)
    return CompressionProfile(
        model=model,
        device="V100",
        batch=examples,
        tensors=tensors,
        buckets=_ddp_buckets(layers, backward_us),
        forward_us=step_us - backward_us,
        backward_us=backward_us,
        gamma=_GAMMA,
        ranks_per_host=4,
        memory_bytes=_V100_BYTES,
        used_bytes=4 * copies * sum(tensor.elements for tensor in tensors),
        codecs=_codecs(tensors),
        provenance={"kind": LITERATURE, "source": SOURCE, "derived": dict(DERIVED)},
    )


def _ddp_buckets(layers: list[_Layer], backward_us: float) -> tuple[GradientBucket, ...]:
    """Return DDP's buckets: one is closed by the tensor that fills it; the first is smaller."""
    total_work = _work(iter(layers))
    buckets: list[GradientBucket] = []
    tensors, bucket_bytes, done = 0, 0, 0.0
    for index, (_, shape, multiply_adds) in enumerate(layers):
        tensors, bucket_bytes, done = (
            tensors + 1,
            bucket_bytes + 4 * math.prod(shape),
            done + multiply_adds,
        )
        if bucket_bytes >= (_BUCKET if buckets else _FIRST_BUCKET) or index == len(layers) - 1:
            ready = backward_us if index == len(layers) - 1 else backward_us * done / total_work
            buckets.append(GradientBucket(tensors=tensors, ready_us=ready))
            tensors, bucket_bytes = 0, 0
    return tuple(buckets)


def _codecs(tensors: tuple[ModelTensor, ...]) -> dict[str, CodecTiming]:
    table = {name: ms * 1e3 for name, ms in _TABLE_4_1_MS.items()}
    table |= {f"powersgd:{rank}": table["powersgd:4"] * rank / 4 for rank in _RANKS}
    table |= {name: table["qsgd:2"] * share for name, share in _QSGD_SHARES.items()}
    share = _compressed(tensors) / _compressed(
        tuple(ModelTensor(name=name, shape=shape) for name, shape, _ in _resnet((3, 4, 6, 3)))
    )
    elements = _compressed(tensors)
    timings = {name: _timing(name, elements, us * share) for name, us in sorted(table.items())}
    for name, size in _CASTS.items():
        touched_us = elements * (4 + size) / _V100_BYTES_PER_S * 1e6
        timings[name] = CodecTiming(
            elements=(elements,), encode_us=(touched_us,), decode_us=(touched_us,)
        )
    return timings


def _compressed(tensors: tuple[ModelTensor, ...]) -> int:
    rules, codec = Policy(), CodecSpec.parse("powersgd:4")
    return sum(t.elements for t in tensors if rules.codec_of(t.name, t.shape, codec) == codec)


def _timing(name: str, elements: int, both_us: float) -> CodecTiming:
    """Divide a time for encode and decode: a payload is decoded at the rate of the memory.

    Decoding touches the result twice (8 bytes an element), for sparse codecs its share of them.
    """
    codec = CodecSpec.parse(name)
    touched = elements * (codec.parameter if codec.traits.parameter == "share" else 1) * 8
    decode_us = min(touched / _V100_BYTES_PER_S * 1e6, both_us / 2)
    return CodecTiming(
        elements=(elements,), encode_us=(both_us - decode_us,), decode_us=(decode_us,)
    )
