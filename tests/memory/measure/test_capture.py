"""Capture of a model: operators, storages, resident memory, and models that are refused."""

import random
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import WithLoss
from headrace.memory.measure.capture import capture
from headrace.memory.measure.captured import Capture
from tests.memory.models import CASES, Combined, SquareLoss


def names(captured: Capture) -> list[str]:
    return [each.name for each in captured.graph.operators]


def operator(captured: Capture, name: str):
    (found,) = (each for each in captured.graph.operators if each.name == name)
    return found


def test_operators_of_a_convolutional_model() -> None:
    model, inputs = CASES["convolutional"]()
    captured = capture(model, inputs)
    graph = captured.graph
    forward = [
        *("convolution", "add", "_native_batch_norm_legit_functional", "relu", "native_dropout"),
        *("max_pool2d_with_indices", "addmm"),
    ]
    assert names(captured)[: graph.forward_count] == forward
    assert names(captured)[graph.forward_count] == "loss"
    assert names(captured)[-1] == "convolution_backward"  # the input needs no gradient
    assert [each.module for each in graph.operators[:7]] == ["0", "1", "1", "2", "3", "4", "6"]
    assert operator(captured, "convolution_backward").module == "0"
    # the counter of batches is overwritten at the end; a second run reads no statistics
    assert [each.name for each in graph.operators[:7] if not each.again] == ["add"]
    assert list(captured.random) == [4]
    assert not any(each.again for each in graph.operators[graph.forward_count :])


def test_sizes_are_those_of_the_allocator() -> None:
    model, inputs = CASES["convolutional"]()
    captured = capture(model, inputs)
    nbytes = {each.name: each.nbytes for each in captured.graph.storages}
    assert nbytes["convolution"] == 4 * 8 * 16 * 16 * 4
    assert nbytes["_native_batch_norm_legit_functional[1]"] == 64  # 8 floats
    assert nbytes["native_dropout[1]"] == 4 * 8 * 16 * 16  # a mask of bytes
    assert nbytes["max_pool2d_with_indices[1]"] == 4 * 8 * 8 * 8 * 8
    resident = captured.graph.resident
    weights = 3 * 8 * 9 + 8 + 8 + 8 + 8 * 64 * 10 + 10
    assert resident["parameters"] == 4 * weights
    assert resident["buffers"] == 4 * 8 * 2 + 8
    assert resident["inputs"] == 4 * 3 * 16 * 16 * 4


def test_views_share_their_storage() -> None:
    model, inputs = CASES["convolutional"]()
    captured = capture(model, inputs)
    (pooled, _indices) = operator(captured, "max_pool2d_with_indices").implementations[0].creates
    assert operator(captured, "addmm").implementations[0].reads == (pooled,)


def test_a_shared_parameter_counts_once() -> None:
    model, inputs = CASES["transformer"]()
    captured = capture(model, inputs)
    expected = 4 * sum(each.numel() for each in model.parameters())
    assert captured.graph.resident["parameters"] == expected


def test_outputs_stay_and_gradients_are_results() -> None:
    model, inputs = CASES["perceptron"]()
    captured = capture(model, inputs)
    named = {captured.graph.storages[index].name for index in captured.graph.outputs}
    assert named == {"tanh_4"}
    assert len(captured.graph.results) == 8
    (loss,) = (each for each in captured.graph.operators if each.name == "loss")
    assert set(loss.implementations[0].reads) == captured.graph.outputs


def test_the_loss_can_be_captured_with_the_model() -> None:
    model, inputs = CASES["perceptron"]()
    captured = capture(WithLoss(model, SquareLoss()), (*inputs, torch.zeros(())))
    (output,) = captured.graph.outputs
    assert captured.graph.storages[output].nbytes == 64  # a scalar


class NotesItsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.log: list[object] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log.append(object())
        return self.layers(x)


def test_modules_have_the_names_that_they_have_in_the_users_model() -> None:
    """A loss is added by a wrapper, whose attribute for the model was the first part of names."""
    model, inputs = CASES["convolutional"]()
    captured = capture(WithLoss(model, SquareLoss()), (*inputs, torch.zeros(())))
    modules = [each.module for each in captured.graph.operators]
    assert modules[:7] == ["0", "1", "1", "2", "3", "4", "6"]
    assert {"(loss)"} < set(modules[7:])
    assert not any(name.startswith("model") for name in modules)
    called, x = WithLoss(NotesItsCalls(), SquareLoss()), torch.randn(3, 6)
    with pytest.raises(CaptureError, match="attribute 'log' of the model is changed"):
        capture(called, (x, torch.zeros(())))
    with pytest.raises(CaptureError, match=r"module 'layers\.0' cannot be captured"):
        capture(called, (x[:, :5], torch.zeros(())))
    called.model.layers[1].register_forward_hook(lambda *_: None)
    with pytest.raises(CaptureError, match=r"module 'layers\.1' has forward hooks"):
        capture(called, (x, torch.zeros(())))


def test_frozen_parameters_have_no_gradient() -> None:
    captured = capture(Combined(), (torch.randn(3, 6),), {"y": torch.randn(3, 6)})
    # of the order of parameters, then inputs
    assert [each is None for each in captured.gradients] == [False, False, True, False, True, True]


def test_nothing_is_computed() -> None:
    """A capture uses fake tensors: a sample on the meta device would need terabytes."""
    with torch.device("meta"):
        model, x = nn.Linear(10**6, 10**6), torch.empty(10**5, 10**6)
    captured = capture(model, (x,))
    assert captured.graph.resident["parameters"] == 4 * (10**12 + 10**6)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x if x.sum() > 0 else -x


def test_control_flow_on_values_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Branching())
    with pytest.raises(CaptureError, match="module '1' cannot be captured: it has control flow on"):
        capture(model, (torch.randn(2, 2),))
    assert not any(vars(each)["_forward_hooks"] for each in model.modules())
    with pytest.raises(CaptureError, match="module '1' cannot be captured"):
        capture(model, (torch.randn(2, 2),))


class Masked(nn.Module):
    """As libraries of models do it: values are looked at, but where a compiler traces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x if not torch.compiler.is_compiling() and mask.all() else x * mask


def test_a_model_that_looks_at_values_is_traced_as_a_compiler_does() -> None:
    captured = capture(Masked(), (torch.randn(3, 2), torch.ones(3, 2)))
    assert "mul.Tensor" in {str(node.target).removeprefix("aten.") for node in captured.fx.nodes}
    assert not torch.compiler.is_compiling()
    with pytest.raises(CaptureError, match="control flow on values"):
        capture(Branching(), (torch.randn(2, 2),))
    assert not torch.compiler.is_compiling()


class Returning(nn.Module):
    def __init__(self, made: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(2, 2), made

    def forward(self, x: torch.Tensor) -> object:
        return self.made(self.linear(x))


def test_reasons_have_remedies() -> None:
    constant = torch.ones(2)
    lengths = [2, 2]
    for made, reason in (
        (lambda x: x + torch.from_numpy(x.detach().numpy()), "it computes with NumPy"),
        (lambda x: x + x.data_ptr(), "it calls a kernel .* make an operator of it"),
        (
            lambda x: nn.utils.rnn.pack_padded_sequence(x, lengths),
            r"by aten\._pack_padded_sequence .* run recurrent layers on padded sequences",
        ),
        (lambda x: x / x.sum().item(), "it has control flow on values .* use torch.where"),
        (lambda x: x[x > 0], r"shapes depend on values, by aten\.nonzero .* use torch.where"),
        (lambda x: x + x.argmax(-1).bincount(minlength=2), r"by aten\.bincount .*one_hot"),
        (lambda x: x * constant, "reads a tensor that is no buffer; use register_buffer"),
        (SimpleNamespace, r"returns an object \(SimpleNamespace\); use a tuple or dict"),
    ):
        made = made if made is not SimpleNamespace else lambda x: SimpleNamespace(x=x)
        with pytest.raises(CaptureError, match=f"cannot be captured: .*{reason}"):
            capture(nn.Sequential(Returning(made)), (torch.randn(2, 2),))


def test_an_object_that_holds_tensors_is_named_as_an_argument() -> None:
    """The message was to register a buffer: of a batch of a graph, or of a tokenizer's encoding."""
    model, x = Computing(lambda x: x), torch.randn(3, 2)
    readers: list[tuple[Any, Callable[[Any], torch.Tensor]]] = [
        (SimpleNamespace(x=x), lambda batch: batch.x),
        (UserDict(x=x), lambda batch: batch["x"]),
        (SimpleNamespace(nodes=SimpleNamespace(table={"x": x})), lambda b: b.nodes.table["x"]),
    ]
    for batch, read in readers:
        model.forward = lambda batch, read=read: model.linear(read(batch))  # pyright: ignore
        match = f"an argument is a {type(batch).__name__}, which holds tensors; pass these"
        with pytest.raises(CaptureError, match=match):
            capture(model, (batch,))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_are_refused(kind: str) -> None:
    """Backward pre-hooks were accepted, and never ran."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    getattr(model[1], f"register_{kind}_hook")(lambda *_: None)
    found = kind.removeprefix("full_").replace("_", " ")
    with pytest.raises(CaptureError, match=f"module '1' has {found} hooks"):
        capture(model, (torch.randn(2, 2),))


class Computing(nn.Module):
    """A linear layer, and a function of its output."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        found = self.function(x)
        return x + found if isinstance(found, torch.Tensor) else x


GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.register_hook(lambda g: 2 * g), "module '1' calls register_hook"),
        (lambda x: torch.randn(x.shape, generator=GENERATOR), "module '1' .*generator of its own"),
        (
            lambda x: torch.zeros_like(x).uniform_(generator=GENERATOR),
            "module '1' .*generator of its own",
        ),
        (lambda x: setattr(x, "data", x.data / 2), r"module '1' assigns the \.data of a tensor"),
        (lambda x: x if random.random() < 0.5 else None, "draws random numbers of Python"),
        (lambda x: x if np.random.rand() < 0.5 else None, "draws random numbers of Python"),
    ],
)
def test_what_a_step_could_not_repeat_is_refused(
    function: Callable[[torch.Tensor], Any], message: str
) -> None:
    """Such a hook ran in the trace alone, and a number of Python's stayed that of the trace.

    Traces do not see new data of a tensor: a weight stayed as it was, where eager normalized it.
    """
    model = nn.Sequential(nn.ReLU(), Computing(function))
    with pytest.raises(CaptureError, match=message):
        capture(model, (torch.randn(2, 2),))


def test_sparse_tensors_are_refused() -> None:
    """They have no storage: torch's error named neither the module nor what would do."""
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 2))
    with pytest.raises(CaptureError, match="module '0' .*sparse=False"):
        capture(model, (torch.randint(5, (3,)),))
    with pytest.raises(CaptureError, match="sparse tensor"):
        capture(nn.Linear(2, 2), (torch.randn(3, 2).to_sparse(),))


def test_a_sparse_buffer_is_refused() -> None:
    """The copy of its values, to set them back, asked for its bytes: an error of torch."""
    model = nn.Linear(2, 2)
    model.register_buffer("adjacency", torch.eye(3).to_sparse())
    model.forward = lambda x: model.adjacency @ nn.functional.linear(x, model.weight)  # pyright: ignore
    with pytest.raises(CaptureError, match="sparse tensor"):
        capture(model, (torch.randn(3, 2),))


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_tensors_without_fake_ones_are_refused_by_their_layout() -> None:
    """The message said to register the buffer that it is; of nested tensors it was torch's own."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nested = torch.nested.nested_tensor([torch.zeros(3, 2), torch.zeros(1, 2)])
    with pytest.raises(CaptureError, match="argument is a nested tensor; use one with padding"):
        capture(model, (nested,))
    model[1].register_buffer("adjacency", torch.eye(3).to_sparse_csr())
    with pytest.raises(CaptureError, match="'1' .* its adjacency is a sparse tensor .sparse_csr."):
        capture(model, (torch.randn(3, 2),))


def test_parameters_that_hold_other_tensors_are_refused() -> None:
    """Of a weight of 8 bits, frozen, the error was of a field of the profile."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    weight = TwoTensor(torch.ones(2, 2), torch.ones(2, 2))
    model[1].weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(CaptureError, match=r"'1' .* its weight is of the class TwoTensor, .* use"):
        capture(model, (torch.randn(3, 2),))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_modules_that_torch_jit_has_compiled_are_refused() -> None:
    """Its buffers counted the batches of eager's measured steps, and gradients of these stayed."""
    x = torch.randn(3, 2)
    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), (x,))
    with pytest.raises(CaptureError, match=r"module '1' .*torch\.jit has compiled it"):
        capture(nn.Sequential(nn.Linear(2, 2), traced), (x,))


def test_sizes_do_not_depend_on_earlier_traces() -> None:
    """Torch remembers results without their storage's bytes: the least budget of a first trace was
    too low for a second, of the same step, in the same process."""
    model = Computing(lambda x: torch.fft.rfft(x.reshape(4, 8)).abs().sum())
    first, second = (capture(model, (torch.randn(16, 2),)).fx.nodes for _ in range(2))
    for a, b in zip(first, second, strict=True):
        if isinstance(a.meta.get("val"), torch.Tensor):
            nbytes = [node.meta["val"].untyped_storage().nbytes() for node in (a, b)]
            assert nbytes[0] == nbytes[1], a


def test_views_of_numbers_are_operators() -> None:
    """The conjugate of 1j, in the backward pass of a product, was read as a view of no tensor."""
    captured = capture(Computing(lambda x: (torch.fft.fft(x) * 1j).real), (torch.randn(3, 2),))
    assert "_conj" in names(captured)


def test_an_unread_random_operator_is_kept() -> None:
    """It was dropped, so that later ones drew other numbers than in eager execution."""
    model = Computing(lambda x: [nn.functional.dropout(x), nn.functional.dropout(x)][1])
    captured = capture(model, (torch.randn(3, 2),))
    assert names(captured)[:3] == ["addmm", "native_dropout", "native_dropout_1"]
    assert list(captured.random) == [1, 2]
    unread = captured.graph.operators[1].implementations[0].creates
    assert not any(set(unread) & set(e.implementations[0].reads) for e in captured.graph.operators)


def test_nothing_to_differentiate_is_refused() -> None:
    with pytest.raises(CaptureError, match="requires gradients"):
        capture(nn.ReLU(), (torch.randn(2, 2),))


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(CaptureError, match="module itself"):
        capture(nn.Linear(2, 2), (torch.randn(2, 3),))


class Averaging(nn.Module):
    """A running mean, assigned or updated in place, and other attributes that a call changes."""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self.linear, self.attribute, self.calls = nn.Linear(2, 2), attribute, 0
        self.register_buffer("mean", torch.zeros(2))
        self.last = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        self.calls += 1
        self.mean.add_(x.detach().mean(0))
        if self.attribute:
            setattr(self, self.attribute, 0.9 * x.detach().mean(0))
        return x - self.mean


def test_tensors_that_a_call_assigns_are_refused() -> None:
    """Captured steps went on with the old ones, and the module was left with fake tensors."""
    for attribute in ("mean", "last"):
        model = nn.Sequential(Averaging(attribute))
        match = f"module '0' assigns the tensor '{attribute}' .*self.{attribute}.copy_"
        with pytest.raises(CaptureError, match=match):
            capture(model, (torch.randn(3, 2),))
        assert type(model[0].mean) is torch.Tensor
        assert model[0].last is None
    model = Averaging("")
    captured = capture(model, (torch.randn(3, 2),))
    assert [(each.name, each.value) for each in captured.changes] == [(("", "calls"), 1)]
    assert model.calls == 0
    assert model.mean.equal(torch.zeros(2))
    assert list(model.state_dict()) == ["mean", "linear.weight", "linear.bias"]


def test_a_seed_that_a_call_sets_is_refused() -> None:
    """Steps drew other numbers than eager's, whose call began from the seed."""

    def seeded(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.rand_like(x)

    def forked(x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng([]):
            return seeded(x)

    model, x = nn.Sequential(nn.ReLU(), Computing(seeded)), torch.randn(2, 2)
    before = torch.get_rng_state()
    for function in (seeded, forked):
        model[1].function = function
        with pytest.raises(CaptureError, match="module '1' sets the seed of torch's generator"):
            capture(model, (x,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_norms_by_hooks_are_refused_with_those_that_need_none(name: str) -> None:
    """The remedy was to remove the hooks, which are the norm."""
    model = nn.Sequential(getattr(nn.utils, name)(nn.Linear(2, 2)))
    with pytest.raises(CaptureError, match=rf"use torch\.nn\.utils\.parametrizations\.{name} in"):
        capture(model, (torch.randn(2, 2),))
    model = nn.Sequential(getattr(nn.utils.parametrizations, name)(nn.Linear(2, 2)))
    capture(model, (torch.randn(2, 2),))


def test_operators_between_ranks_that_write_in_place_are_refused() -> None:
    """The message was that the model draws random numbers of Python, which torch's trace does."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        total = x.detach().clone()
        dist.all_reduce(total)
        return total

    model, x = nn.Sequential(nn.ReLU(), Computing(reduced)), torch.randn(2, 2)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(CaptureError, match=r"c10d\.allreduce_.*use functions of torch"):
            capture(model, (x,))
    finally:
        dist.destroy_process_group()
