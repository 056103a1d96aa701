"""Stated bounds of the codecs' errors against measured ones; feedback where they allow it."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headrace.compression.adapt.auto import Auto
from headrace.compression.averaging import Averager
from headrace.compression.bounds import codec_accuracy, error_bound
from headrace.compression.codecs.requests import run_together
from headrace.compression.errors import CompressionError
from headrace.compression.families import FAMILIES, CodecSpec
from headrace.compression.policy import Policy
from tests.compression.codecs.group import average

SPECS = (
    "none", "bf16", "fp16", "fp8", "minmax:2", "minmax:4", "minmax:8", "qsgd:2", "qsgd:3",
    "qsgd:4", "qsgd:5", "qsgd:6", "qsgd:8", "terngrad", "sign", "topk:1%", "topk:10%+bf16",
    "topk:100%", "mstopk:3%", "mstopk:3%+fp16", "dgc:1%", "randomk:1%", "randomk:30%+bf16",
    "powersgd:1", "powersgd:4", "powersgd:4+bf16", "atomo:1", "atomo:4+fp16",
)  # fmt: skip
DRAWS = 12
DRAWN = {"qsgd", "terngrad", "mstopk", "dgc", "randomk", "powersgd"}
"""Families whose errors differ from draw to draw."""
SHAPES = ((96, 64), (16, 24), (3, 2))  # above and below buckets and DGC's sample; tiny


def inputs(shape: tuple[int, int]) -> dict[str, Tensor]:
    """Random matrices, and those on which some codec does its worst."""
    n = math.prod(shape)
    random = torch.Generator().manual_seed(n)
    normal = torch.randn(shape, generator=random)
    single, pair = torch.zeros(shape), torch.zeros(shape)
    single.view(-1)[n // 2] = 3.0
    pair.view(-1)[0], pair.view(-1)[1] = 1.0, -1.0  # all zeros are in the middle of two levels
    worst_ternary = torch.full(shape, 1 / (math.sqrt(min(n, 1024)) + 1))
    worst_ternary.view(-1)[::1024] = 1.0
    halves = torch.full(shape, 0.5)
    halves.view(-1)[::512] = math.sqrt(512) / 2
    return {
        "normal": normal,
        "heavy": normal**5,
        "equal": torch.ones(shape),
        "signs": normal.sign(),
        "single": single,
        "pair": pair,
        "ternary": worst_ternary,
        "halves": halves,
        "orthogonal": torch.eye(*shape),
        "decades": 10.0 ** torch.linspace(-3, 3, n).view(shape),
    }


@pytest.mark.sampled(8)
@pytest.mark.parametrize("spec", SPECS)
def test_errors_are_within_the_stated_bound(spec: str) -> None:
    codec = CodecSpec.parse(spec)
    for shape in SHAPES:
        bound = error_bound(codec, shape)
        for name, matrix in inputs(shape).items():
            tensor = matrix if codec.traits.matrices else matrix.view(-1)
            order = math.inf if bound.norm == "maximum" else 2
            size = torch.linalg.vector_norm(tensor.double(), order)
            ratios: list[float] = []
            for step in range(DRAWS if codec.family in DRAWN else 1):
                ((mean,),), _ = average(spec, [[tensor]], feedback=True, step=step)
                left = torch.linalg.vector_norm((tensor - mean).double(), order)
                ratios.append(float((left / size) ** 2))
            mean_ratio = sum(ratios) / len(ratios)
            spread = sum((ratio - mean_ratio) ** 2 for ratio in ratios) / len(ratios)
            if codec.family == "randomk":  # an element that is rarely drawn may be in no draw
                spread = max(spread, bound.error * (1 - bound.error))
            error = 5 * math.sqrt(spread / len(ratios)) + 1e-6
            assert mean_ratio <= bound.error + error, (shape, name)


def test_bounds_are_near_what_the_worst_inputs_give() -> None:
    """A shard of three values is encoded again exactly: TernGrad errs once, not twice."""
    for spec, name, share in (
        ("topk:1%", "equal", 0.999),
        ("sign", "single", 0.999),
        ("terngrad", "ternary", 0.04),
        ("qsgd:4", "halves", 0.1),
    ):
        tensor = inputs(SHAPES[0])[name].view(-1)
        errors: list[float] = []
        for step in range(DRAWS):
            ((mean,),), _ = average(spec, [[tensor]], feedback=True, step=step)
            errors.append(float((tensor - mean).norm() ** 2 / tensor.norm() ** 2))
        bound = error_bound(CodecSpec.parse(spec), SHAPES[0]).error
        assert sum(errors) / DRAWS >= share * bound, spec


def test_plan_and_auto_agree_on_the_accuracy_of_the_default_levels() -> None:
    """powersgd:4 was harsh in the output of ``plan``, and gentle as a level of ``"auto"``."""
    shapes = {"weight": (512, 512)}
    accuracy = {
        level: codec_accuracy(CodecSpec.parse(level), Policy(), shapes)
        for level in (*Auto().levels, "minmax:4")
    }
    assert [level for level in Auto().levels if not accuracy[level].gentle] == ["powersgd:4"]
    assert accuracy["minmax:4"].gentle
    page = Path(__file__).parents[2] / "docs" / "compression.md"
    text = " ".join(page.read_text().split())
    assert "Of these three PowerSGD's error is harsh by [its bound]" in text
    assert '`Auto(levels=["none", "bf16", "minmax:4"])` has gentle ones alone' in text


def test_feedback_is_a_familys_default_only_where_it_contracts() -> None:
    for family, traits in FAMILIES.items():
        bits = range(int(traits.low), int(traits.high) + 1) if traits.parameter == "bits" else (0,)
        for parameter in bits:
            text = f"{family}:{parameter}" if parameter else family
            for shape in (*SHAPES, (1024, 1024)):
                bound = error_bound(CodecSpec.parse(text), shape)
                assert bound.contracts or not traits.feedback, text


@pytest.mark.parametrize("spec", ["qsgd:2", "qsgd:4", "qsgd:5", "terngrad"])
def test_feedback_over_a_codec_that_expands_is_refused(spec: str) -> None:
    """Residuals of qsgd:2 with feedback were infinite after 20 steps, and the model NaN.

    An unbiased quantiser may be wrong by many times what it encodes: fed back, that grows.
    """
    rules = Policy(codec=spec, feedback=True)
    with pytest.raises(CompressionError, match=r"grow without bound.*feedback=None.*minmax:4"):
        Averager(rules, {"weight": (64, 64)}, rank=0, ranks=1)
    averager = Averager(Policy(feedback=True), {"weight": (64, 64)}, rank=0, ranks=1)
    with pytest.raises(CompressionError, match="grow without bound"):
        averager.set_codec(None, spec)
    assert str(averager.codecs["weight"]) == "none"
    Averager(spec, {"weight": (64, 64)}, rank=0, ranks=1)  # without feedback it is unbiased
    few = Averager(
        Policy(codec="qsgd:4", feedback=True, smallest=0), {"w": (4, 4)}, rank=0, ranks=1
    )
    assert str(few.codecs["w"]) == "qsgd:4"  # a bucket of 16 elements contracts


def test_the_error_names_the_bits_that_contract() -> None:
    with pytest.raises(CompressionError, match="qsgd:6 or more bits"):
        Averager(Policy(codec="qsgd:4", feedback=True), {"w": (64, 64)}, rank=0, ranks=1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("spec", ["qsgd:6", "qsgd:8", "minmax:2", "fp8", "sign", "topk:1%"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_residuals_over_codecs_that_contract_stay_bounded(spec: str, ranks: int) -> None:
    shapes, rules = {"w": (64, 64)}, Policy(codec=spec, feedback=True)
    group = [Averager(rules, shapes, rank=rank, ranks=ranks) for rank in range(ranks)]
    norms: list[float] = []
    for step in range(300):
        given = [
            torch.randn(64, 64, generator=torch.Generator().manual_seed(step * ranks + rank))
            for rank in range(ranks)
        ]
        run_together([one.average([("w", own)]) for one, own in zip(group, given, strict=True)])
        norms.append(max(float(one.residual("w").norm()) for one in group))
    assert max(norms[200:]) <= 1.5 * max(norms[:200])
