import pytest
import torch
from torch import nn
from torch.backends import cudnn
from torch.fx import GraphModule

from headrace.memory.measure.allocations import allocations_of
from headrace.memory.operators.convolution import (
    _ALGORITHMS,  # pyright: ignore[reportPrivateUsage]
    ByAlgorithm,
    input_gradient,
    split_convolutions,
)
from tests.memory.operators.conformance import Step
from tests.memory.operators.conformance import check as check_variants

CONVOLUTIONS = (
    nn.Conv2d(6, 4, 3, padding=1),
    nn.Conv2d(6, 4, 1, bias=False),
    nn.Conv2d(6, 9, (3, 2), stride=2, padding=(1, 0), dilation=2, groups=3),
    nn.Conv2d(6, 6, 3, groups=6),
    nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1),
    nn.Conv2d(6, 32, 7, stride=2, padding=3),
)


def split(module: GraphModule) -> None:
    split_convolutions(module.graph)


def check(model: nn.Module, x: torch.Tensor, splits: int = 1) -> Step:
    counts: list[int] = []
    plain = Step(model, x)
    step = Step(model, x, rewrite=lambda module: counts.append(split_convolutions(module.graph)))
    assert counts == [splits]
    for found, expected in zip(step.expected, plain.expected, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    return step


@pytest.mark.sampled(4)
@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_split_gradients_are_the_same_bits(
    convolution: nn.Module, layout: torch.memory_format
) -> None:
    torch.manual_seed(3)
    for shape in ((2, 6, 9, 8), (1, 6, 16, 17)):
        x = torch.randn(shape).to(memory_format=layout).requires_grad_()
        check(convolution, x)


def test_other_dimensions_types_and_strides() -> None:
    check(nn.Conv1d(3, 5, 3), torch.randn(2, 3, 9, requires_grad=True))
    check(nn.Conv3d(3, 5, 3, padding=1), torch.randn(2, 3, 5, 6, 7, requires_grad=True))
    double = torch.randn(2, 6, 9, 8, dtype=torch.float64, requires_grad=True)
    check(nn.Conv2d(6, 4, 3).double(), double)
    half = torch.randn(2, 6, 9, 8, dtype=torch.bfloat16, requires_grad=True)
    check(nn.Conv2d(6, 4, 3).bfloat16(), half)
    check(CONVOLUTIONS[0], torch.randn(2, 6, 9, 8).transpose(2, 3).requires_grad_())
    check(nn.Conv2d(6, 4, 3).to(memory_format=torch.channels_last), torch.randn(2, 6, 9, 8), 0)


def test_the_input_gradient_reads_no_input() -> None:
    x = torch.randn(2, 6, 9, 8, requires_grad=True)
    step = check(nn.Sequential(CONVOLUTIONS[0], nn.Conv2d(4, 4, 3)), x, splits=2)
    calls = step.graph.find_nodes(op="call_function", target=input_gradient)
    assert [len(each.all_input_nodes) for each in calls] == [2, 2]


def test_frozen_parameters_leave_the_input_gradient_alone() -> None:
    model = nn.Conv2d(6, 4, 3).requires_grad_(False)
    step = check(model, torch.randn(2, 6, 9, 8, requires_grad=True))
    assert "convolution_backward" not in " ".join(str(each.target) for each in step.graph.nodes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_parts_of_the_batch(
    convolution: nn.Module, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.memory.operators.convolution._LEAST_BYTES", 0)
    torch.manual_seed(3)
    for batch in (2, 5, 9):
        x = torch.randn(batch, 6, 9, 8).to(memory_format=layout).requires_grad_()
        assert check_variants(convolution, x, rewrite=split)["in 4 parts"] == 3
    one = torch.randn(1, 6, 9, 8, requires_grad=True)
    assert not check_variants(convolution, one, rewrite=split)


@pytest.mark.parametrize("convolution", CONVOLUTIONS, ids=str)
def test_other_algorithms(convolution: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the settings change nothing, but all else is as on a GPU."""
    module = "headrace.memory.operators.convolution"
    monkeypatch.setattr(f"{module}._LEAST_BYTES", 0)
    monkeypatch.setattr(f"{module}._ALGORITHMS", {"cpu": _ALGORITHMS["cuda"]})
    torch.manual_seed(3)
    x = torch.randn(2, 6, 9, 8).to(memory_format=torch.channels_last).requires_grad_()
    found = check_variants(convolution, x, rewrite=split)
    assert found["deterministic algorithm"] == found["algorithm without cuDNN"] == 3


def test_algorithms_are_set_for_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "benchmark", True)
    for value in (False, True):
        monkeypatch.setattr(cudnn, "deterministic", value)
        by = ByAlgorithm(lambda: (cudnn.deterministic, cudnn.benchmark), "deterministic", True)
        assert by() == (True, True)
        assert cudnn.deterministic is value
    off = ByAlgorithm(lambda: cudnn.enabled or 1 / 0, "enabled", False)
    with pytest.raises(ZeroDivisionError):
        off()
    assert cudnn.enabled


def test_parts_have_small_workspaces() -> None:
    x, convolution = torch.randn(8, 16, 64, 64), nn.Conv2d(16, 16, 3, padding=1)
    step = Step(convolution, x.requires_grad_(), rewrite=split)
    cpu = torch.device("cpu")
    chosen = {node: ways[0] for node, ways in step.variants.items()}
    assert len(chosen) == 3
    for node, variant in chosen.items():
        plain, parts = (
            allocations_of(lambda by=by: step.run(by), cpu).peak_bytes
            for by in ({each: way for each, way in chosen.items() if each is not node}, chosen)
        )
        assert parts <= plain, variant.name
    everything = allocations_of(lambda: step.run({}), cpu).peak_bytes
    assert allocations_of(lambda: step.run(chosen), cpu).peak_bytes < everything - x.nbytes
