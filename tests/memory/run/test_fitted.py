"""A fitted module in ordinary training loops."""

import operator
import pickle
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, partial
from inspect import signature
from types import MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn.utils import parametrize

from headrace.memory import fit
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.step import StepConditions
from headrace.memory.plan.baselines import keep_schedule
from headrace.memory.schedule import Schedule, plain_schedule
from tests.memory.models import CASES, Solving
from tests.memory.training import assert_trains_alike


def sparing(captured: Capture) -> dict[int, Schedule]:
    return {1: keep_schedule(captured.graph, ())}


@pytest.mark.parametrize("case", ["convolutional", "transformer"])
def test_it_trains_as_the_module(case: str) -> None:
    model, inputs = CASES[case]()
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    assert_trains_alike(partial(fitted, *inputs), fitted, partial(eager, *inputs), eager)
    assert_trains_alike(partial(fitted, *inputs), model, partial(eager, *inputs), eager)


def test_a_trainer_may_note_a_method_of_it_on_it() -> None:
    """Accelerate does for mixed precision: every step was traced, as what it notes had changed."""
    traces: list[None] = []

    class Noting(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            traces.append(None)
            return super().forward(input)

    fitted = fitted_module(Noting(4, 2), sparing)
    x = torch.randn(3, 4)
    fitted(x).sum().backward()
    fitted._original_forward = fitted.forward
    for _ in range(2):  # another trace tells that the attribute is not used
        fitted(x).sum().backward()
    count = len(traces)
    fitted(x).sum().backward()
    assert len(traces) == count


def test_a_trainer_finds_the_method_that_it_noted_and_the_model_has_none() -> None:
    """Accelerate did not unwrap what it had wrapped, and the model could not be pickled."""
    model = nn.Linear(4, 2)
    fitted = fitted_module(model, sparing)
    fitted._original_forward = fitted.forward
    assert pickle.loads(pickle.dumps(model)).weight.shape == (2, 4)
    assert fitted.__dict__.pop("_original_forward") == fitted.forward
    fitted.scaled = MethodType(lambda model, x: 2 * x, fitted)  # any other method is the model's
    assert model.scaled(3) == 6


def test_names_and_state_are_the_modules_own() -> None:
    model, _ = CASES["convolutional"]()
    fitted = fitted_module(model, sparing)
    assert list(fitted.state_dict()) == list(model.state_dict())
    assert dict(fitted.named_parameters()) == dict(model.named_parameters())
    assert [name for name, _ in fitted.named_modules()] == [n for n, _ in model.named_modules()]
    assert fitted.get_submodule("0") is model[0]
    assert fitted.extend  # a method of the model
    other, _ = CASES["convolutional"]()
    fitted.load_state_dict(other.state_dict())
    assert torch.equal(model[0].weight, other[0].weight)
    outer = nn.Sequential(fitted)
    outer.load_state_dict(nn.Sequential(model).state_dict())
    assert list(outer.state_dict()) == list(nn.Sequential(model).state_dict())
    fitted.double()
    assert model[0].weight.dtype == torch.float64


@pytest.mark.parametrize("nested", [False, True])
def test_hooks_of_the_state_are_the_modules_own(nested: bool) -> None:
    """Those registered on a fitted module never ran, nor those behind the load of a nested one."""
    model, _ = CASES["perceptron"]()
    fitted = fitted_module(model, sparing)
    calls: list[str] = []
    for name, module in (("model", model), ("fitted", fitted)):
        module.register_state_dict_pre_hook(lambda *_, name=name: calls.append(f"{name} saves"))
        module.register_state_dict_post_hook(lambda *_, name=name: calls.append(f"{name} saved"))
        module.register_load_state_dict_pre_hook(
            lambda *_, name=name: calls.append(f"{name} loads")
        )
        module.register_load_state_dict_post_hook(
            lambda *_, name=name: calls.append(f"{name} loaded")
        )
    root = nn.Sequential(fitted) if nested else fitted
    root.load_state_dict(root.state_dict())
    moments = ("saves", "saved", "loads", "loaded")
    assert calls == [f"{name} {moment}" for moment in moments for name in ("model", "fitted")]


def test_a_schedule_is_prepared_where_gradients_are_off() -> None:
    """The error was that no output depends on a parameter that requires gradients."""
    model, inputs = CASES["perceptron"]()
    fitted = fitted_module(model, sparing)
    with torch.no_grad():
        fitted.prepare(*inputs)
    assert fitted.budgets == (1,)


def test_evaluation_and_no_grad_run_the_module() -> None:
    model, inputs = CASES["convolutional"]()

    def refuse(captured: Capture) -> dict[int, Schedule]:
        raise AssertionError("captured")

    fitted = fitted_module(model, refuse)
    with torch.no_grad():
        fitted(*inputs)
    fitted.eval()
    assert not model.training
    assert torch.equal(fitted(*inputs), model(*inputs))
    fitted.train()
    assert model[1].training
    with pytest.raises(AssertionError, match="captured"):
        fitted(*inputs)


def test_the_mode_is_that_of_the_model() -> None:
    """After `model.train()` steps ran without a schedule, after `model.eval()` with one."""
    model, inputs = CASES["perceptron"]()
    planned: list[Capture] = []

    def plan(captured: Capture) -> dict[int, Schedule]:
        planned.append(captured)
        return sparing(captured)

    fitted = fitted_module(model, plan)
    model.eval()
    fitted(*inputs)
    assert not planned
    assert not fitted.training
    fitted.eval()
    model.train()
    fitted(*inputs)
    assert len(planned) == 1


def test_gradients_accumulate() -> None:
    model, (x,) = CASES["residual"]()
    eager = deepcopy(model)
    for module in (fitted_module(model, sparing), eager):
        for scale in (1, 2):
            module(x * scale).sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert a.grad.equal(b.grad)


def test_another_batch_size_runs_the_module_with_one_warning() -> None:
    model, (x,) = CASES["perceptron"]()
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    with pytest.warns(UserWarning, match="other shapes"):
        fitted(x[:3]).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(x[:3]).sum().backward()
        fitted(x).sum().backward()


def test_another_batch_size_is_captured_too() -> None:
    model, (x,) = CASES["convolutional"]()
    eager = deepcopy(model)
    planned: list[Capture] = []

    def plan(captured: Capture) -> dict[int, Schedule]:
        planned.append(captured)
        return sparing(captured)

    fitted = fitted_module(model, plan, captures=2)
    for batch in (x, x[:3], x):
        assert_trains_alike(partial(fitted, batch), fitted, partial(eager, batch), eager, steps=1)
    assert len(planned) == 2


def doubling(module: nn.Module) -> None:
    module.register_forward_hook(lambda _module, _inputs, output: output * 2)


def test_changed_modules_are_captured_again() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    eager, x = deepcopy(model), torch.randn(16, 4)
    fitted = fitted_module(model, sparing, captures=2)

    def changed(change: Callable[[nn.Sequential], None]) -> None:
        change(model)
        change(eager)
        assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)

    changed(lambda _: None)
    changed(lambda each: setattr(each[1], "p", 0.1))
    changed(lambda each: each.__setitem__(2, nn.GELU()))
    with pytest.warns(
        UserWarning, match="types, modes, modules, hooks, arguments or attributes than"
    ):  # two are planned already, as the share of a dropout needs no other plan
        changed(lambda each: doubling(each[3]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(4, 8),
        nn.LSTM(4, 8, 2, bidirectional=True, batch_first=True, dropout=0.5),
        nn.LSTM(4, 8, 3, bias=False, dropout=0.5),
        nn.GRU(4, 8, 2, bidirectional=True, dropout=0.5),
        nn.RNN(4, 8, 2, batch_first=True, dropout=0.5),
    ],
    ids=str,
)
def test_recurrent_layers_train_as_the_module(model: nn.Module) -> None:
    """An LSTM's backward pass ended the process; dropout between layers was left out."""
    torch.manual_seed(3)
    x, eager = torch.randn(2, 2, 4), deepcopy(model)
    fitted = fitted_module(model, sparing)

    def run(module: nn.Module) -> torch.Tensor:
        return module(x)[0]

    runs = partial(run, fitted), fitted, partial(run, eager), eager
    assert_trains_alike(*runs, steps=2)


def test_a_fitted_module_is_copied_and_not_pickled() -> None:
    model, (x,) = CASES["perceptron"]()
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    copied = deepcopy(fitted)
    copied.zero_grad()
    copied(x).sum().backward()
    for a, b in zip(copied.parameters(), model.parameters(), strict=True):
        assert a is not b
        assert a.grad.equal(b.grad)
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        pickle.dumps(fitted)


def test_the_loss_is_part_of_the_step() -> None:
    model, (x,) = CASES["convolutional"]()
    eager = deepcopy(model)
    target = torch.randint(0, 10, (4,))
    fitted = fitted_module(model, sparing, conditions=StepConditions(loss=nn.CrossEntropyLoss()))
    assert list(fitted.state_dict()) == list(model.state_dict())

    def expected() -> torch.Tensor:
        return nn.functional.cross_entropy(eager(x), target)

    assert_trains_alike(partial(fitted, x, target), fitted, expected, eager)


class WithLogits(nn.Module):
    """A model that returns its loss by name, as libraries do, and what it is the loss of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        return {"logits": logits, "loss": logits.square().mean(), "other": self.unused(x)}


def test_beside_a_loss_no_output_has_gradients() -> None:
    model, x = WithLogits(), torch.randn(5, 4)
    eager = deepcopy(model)
    captured: list[Capture] = []

    def plan(found: Capture) -> dict[int, Schedule]:
        captured.append(found)
        return sparing(found)

    fitted = fitted_module(model, plan)
    assert_trains_alike(lambda: fitted(x)["loss"], model, lambda: eager(x)["loss"], eager)
    tangents = [node for node in captured[0].fx.nodes if node.name.startswith("tangents")]
    assert len(tangents) == 1
    fitted(x)["loss"].backward()
    assert model.linear.weight.grad is not None
    assert model.unused.weight.grad is None  # as eager's
    found = fitted(x)
    assert all(each.requires_grad for each in found.values())
    assert torch.equal(found["logits"], eager(x)["logits"])
    with pytest.raises(CaptureError, match="beside 'loss'.* as a tuple"):
        (found["loss"] + found["logits"].sum()).backward()


class Measuring(nn.Module):
    """A model that returns how well it does beside its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x)
        accuracy = (logits.argmax(-1) == 0).float().mean()
        return {"accuracy": accuracy, "loss": logits.square().mean(), "logits": logits}


def test_beside_a_loss_outputs_need_gradients_where_eagers_do() -> None:
    """An accuracy needed gradients, and could not become an array of NumPy."""
    model, x = Measuring(), torch.randn(5, 4)
    outputs, expected = fitted_module(model, sparing)(x), model(x)
    assert outputs["accuracy"].numpy() == expected["accuracy"].numpy()
    assert outputs["logits"].requires_grad
    outputs["loss"].backward()
    assert model.linear.weight.grad is not None


def test_autocast() -> None:
    model, (x,) = CASES["perceptron"]()
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing, captures=2)

    def cast(module: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    assert fitted(x).dtype == torch.float32
    assert cast(fitted).dtype == torch.bfloat16
    assert_trains_alike(partial(cast, fitted), fitted, partial(cast, eager), eager)
    once = fitted_module(CASES["perceptron"]()[0], sparing)
    once(x)
    with pytest.warns(UserWarning, match="other shapes, strides, autocast"):  # was not named
        cast(once)


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def parametrized() -> nn.Sequential:
    """Return a model of its own class: copies of one have the same entries in torch's cache."""
    torch.manual_seed(0)
    layer = parametrize.register_parametrization(nn.Linear(4, 4), "weight", Halved())
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize("plans_first", [False, True])
def test_parametrized_tensors_that_torch_caches(plans_first: bool) -> None:
    """A trace read tensors of earlier calls in the cache: the model was refused."""
    model, eager, x = parametrized(), parametrized(), torch.randn(3, 4)
    fitted = fitted_module(model, sparing, captures=2)
    if plans_first:
        fitted(x).sum().backward()
        model.zero_grad()
    with parametrize.cached():
        weights = [each[0].weight for each in (model, eager)]  # of an earlier call
        assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)
        assert [model[0].weight, eager[0].weight] == weights


class Mixed(nn.Module):
    """A layer under autocast, and a head in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.linear(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(x.float())


def test_what_autocast_leaves_out_has_gradients_in_its_own_precision() -> None:
    """Its backward pass was traced under the autocast of the call, in 16 bits."""
    model, x = Mixed(), torch.randn(5, 8)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)

    def cast(module: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    assert_trains_alike(partial(cast, fitted), fitted, partial(cast, eager), eager)


def test_two_calls_before_the_backward_pass() -> None:
    model, (x,) = CASES["convolutional"]()
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)

    def twice(module: nn.Module) -> torch.Tensor:
        return module(x) * module(x + 1)

    assert_trains_alike(partial(twice, fitted), fitted, partial(twice, eager), eager)


def test_a_layer_that_is_frozen_later_is_captured_again() -> None:
    model, (x,) = CASES["convolutional"]()
    fitted = fitted_module(model, sparing, captures=2)
    fitted(x).sum().backward()
    model[0].weight.requires_grad_(False)
    model.zero_grad()
    fitted(x).sum().backward()
    assert model[0].weight.grad is None
    assert model[6].weight.grad is not None


def test_steps_that_train_other_parameters_are_named_so() -> None:
    """Of steps with frozen layers the warning named everything but that."""
    model, (x,) = CASES["perceptron"]()
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    model[1].requires_grad_(False)
    with pytest.warns(UserWarning, match="other shapes, .* trained parameters"):
        fitted(x)


class FlatKernel(nn.Module):
    """A product with a convolution's kernel, whose reshape is a view in one memory format alone."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.convolution.weight.flatten(1).T


def test_parameters_of_another_memory_format_are_another_kind_of_step() -> None:
    """The view of the trace was taken of parameters that have no such view: an error of torch."""
    model, x = FlatKernel(), torch.randn(2, 36)
    fitted = fitted_module(model, sparing, captures=2)
    fitted(x)
    fitted.to(memory_format=torch.channels_last)
    eager = deepcopy(model)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager, steps=1)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_arguments_run_the_module() -> None:
    """Those in rows have no strides, which a step was compared by: an error of torch."""
    model, x = nn.Linear(4, 2, bias=False), torch.eye(4)
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        fitted._warned.clear()  # pyright: ignore[reportPrivateUsage]
        with pytest.warns(UserWarning, match="other shapes, strides"):
            outputs = fitted(sparse)
        assert torch.equal(outputs, model(x))


def test_deterministic_algorithms_are_another_kind_of_step() -> None:
    """Torch refuses backward passes of graphs without: trainers set them behind a fit."""
    model, inputs = CASES["perceptron"]()
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing, captures=2)
    fitted(*inputs).sum().backward()
    model.zero_grad()
    torch.use_deterministic_algorithms(True)
    try:
        assert_trains_alike(partial(fitted, *inputs), fitted, partial(eager, *inputs), eager)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
def test_within_a_compiled_function_it_runs_by_its_schedule() -> None:
    """The compiler made graphs of single operators of it; a step that is traced again failed."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    model.zero_grad()
    graphs: list[GraphModule] = []

    def compiler(graph: GraphModule, example_inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda x: fitted(x) * 2, backend=compiler)
    model[1].p = eager[1].p = 0.25
    eager_run = lambda: eager(x) * 2  # noqa: E731
    assert_trains_alike(lambda: compiled(x), fitted, eager_run, eager, steps=2)
    (graph,) = graphs
    (product,) = (node for node in graph.graph.nodes if node.op == "call_function")
    assert product.target is operator.mul


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_arguments_run_the_module() -> None:
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    fitted = fitted_module(model, sparing)
    fitted(x).sum().backward()
    with pytest.warns(UserWarning, match="other shapes, strides"):
        outputs = fitted(torch.nested.nested_tensor([x, x[:1]]))
    assert torch.equal(outputs[0], nn.functional.linear(x, model.weight, model.bias))


class Factorizing(nn.Module):
    """Factorizations with checks of their own, in both passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x).tanh()
        matrix = hidden @ hidden.T + torch.eye(6)
        solved = torch.linalg.solve(matrix, hidden) + torch.linalg.inv(matrix)
        return solved @ torch.linalg.cholesky(matrix) + torch.linalg.slogdet(matrix)[1]


def test_factorizations_train_as_the_module() -> None:
    """Their checks were refused as higher-order operators, which the model does not call."""
    model, x = nn.Sequential(Factorizing(), Factorizing()), torch.randn(6, 6)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager)


def test_a_singular_matrix_is_the_error_that_it_is_without_a_schedule() -> None:
    fitted = fitted_module(Solving(), sparing)
    fitted(torch.eye(3)).sum().backward()
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg\.solve: .*singular"):
        fitted(torch.zeros(3, 3))


def test_schedules_of_several_budgets_take_turns() -> None:
    model, inputs = CASES["convolutional"]()
    eager = deepcopy(model)
    fitted = fitted_module(
        model, lambda captured: {10: sparing(captured)[1], 20: plain_schedule(captured.graph)}
    )
    saved: list[int] = []

    def forward() -> torch.Tensor:
        held: set[int] = set()

        def pack(value: torch.Tensor) -> torch.Tensor:
            held.add(value.untyped_storage().nbytes())
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            found = fitted(*inputs)
        saved.append(sum(held))
        return found

    for budget in (20, 15, 10, "1KiB"):
        fitted.set_budget(budget)
        assert_trains_alike(forward, fitted, partial(eager, *inputs), eager, steps=1)
    assert fitted.budgets == (10, 20)
    assert saved[0] == saved[3] > saved[1] == saved[2]
    with pytest.raises(BudgetError, match=r"budget is 9 B.*10 B, 20 B"):
        fitted.set_budget(9)


class Placed(nn.Module):
    """Features in the places of some tokens, as in models of images and text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.features = nn.Embedding(8, 4), nn.Linear(6, 4)

    def forward(self, tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        places, features = tokens == 7, self.features(images)
        torch._check_tensor_all(places.sum() == len(features), lambda: "features do not match")
        return self.embedding(tokens).masked_scatter(places.unsqueeze(-1), features).tanh()


def test_checks_of_values_are_those_of_each_step() -> None:
    """Models of images and text were refused: the check is control flow on values."""
    model, images = Placed(), torch.randn(2, 6)
    tokens = torch.tensor([[1, 7, 2, 3], [7, 1, 5, 4]])
    eager = deepcopy(model)
    fitted = fit(model, (tokens, images), "1MiB", exact=True, cache=False)
    calls = partial(fitted, tokens, images), fitted, partial(eager, tokens, images), eager
    assert_trains_alike(*calls)
    with pytest.raises(ValueError, match="a check of the model does not hold on this batch"):
        fitted(tokens.clamp(max=6), images)
    with pytest.raises(RuntimeError, match="features do not match"):
        model(tokens.clamp(max=6), images)


class Optional(nn.Module):
    """A model that takes constants beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0, kind: str = ""
    ) -> torch.Tensor:
        x = self.linear(x) * scale
        x = torch.tanh(x) if kind == "tanh" else x
        return x if mask is None else x * mask


class Sampling(nn.Module):
    """An encoder of a mean and a deviation, as of variational models, and a policy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, deviation, scores = self.linear(x).split(2, dim=-1)
        checked = {"validate_args": True}  # the default until torch has compiled something
        posterior = torch.distributions.Normal(mean, deviation.exp() * x.amax(), **checked)
        policy = torch.distributions.Categorical(logits=scores, **checked)
        return posterior.rsample(), policy.log_prob(action) + policy.entropy()


def test_arguments_of_distributions_are_checked_in_each_step() -> None:
    """They were refused as control flow on values, with the advice to check no arguments."""
    model, x, action = Sampling(), torch.rand(3, 4) + 1, torch.tensor([0, 1, 0])
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing)
    assert_trains_alike(partial(fitted, x, action), fitted, partial(eager, x, action), eager)
    for batch in ((-x, action), (x, action + 1)):  # a negative deviation, an action of none
        with pytest.raises(ValueError, match=r"Expected (parameter scale|value argument)"):
            eager(*batch)
        with pytest.raises(ValueError, match="of a distribution's arguments"):
            fitted(*batch)


def test_constants_among_the_arguments() -> None:
    """None, a number or a text raised a bare KeyError, at `fit` and at later steps."""
    model, x = Optional(), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing, captures=6)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, None), {}),
        ((x, x, 2.0), {}),
        ((x,), {"mask": None, "scale": 3, "kind": "tanh"}),
        ((x,), {"mask": x + 1, "scale": True}),
        ((), {"x": x, "kind": "none"}),
    ]
    for args, kwargs in calls:
        runs = partial(fitted, *args, **kwargs), fitted, partial(eager, *args, **kwargs), eager
        assert_trains_alike(*runs, steps=1)
    assert len(fitted.budgets) == 1


def test_one_tensor_as_two_arguments_is_another_kind_of_step() -> None:
    model, x = Optional(), torch.randn(3, 4)
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing, captures=2)
    for mask in (x, x + 1):
        runs = partial(fitted, x, mask), fitted, partial(eager, x, mask), eager
        assert_trains_alike(*runs, steps=1)


def test_a_weight_that_is_tied_no_more() -> None:
    model, inputs = CASES["transformer"]()
    eager = deepcopy(model)
    fitted = fitted_module(model, sparing, captures=2)
    for step in range(2):
        assert_trains_alike(
            partial(fitted, *inputs), fitted, partial(eager, *inputs), eager, steps=1
        )
        for each in (model, eager) if not step else ():
            each.head.weight = nn.Parameter(each.head.weight.detach().clone())


def test_the_signature_is_the_models() -> None:
    """Trainers read which arguments `forward` has: a fitted module seemed to take any."""
    model, x = Optional(), torch.randn(4, 4)
    fitted = fitted_module(model, sparing)
    for module in (fitted, deepcopy(fitted)):
        assert signature(module.forward) == signature(model.forward)
        assert list(signature(type(module).forward).parameters)[1:] == [
            *signature(model.forward).parameters
        ]
        assert type(module).__name__ == "FittedModule"
        module(x).sum().backward()


def test_data_parallel_is_refused_with_what_to_do() -> None:
    """Trainers put it around a model on several GPUs: steps met tensors on two devices."""
    fitted = fitted_module(nn.Linear(4, 4), sparing)
    with pytest.raises(CaptureError, match="start a process for each .torchrun."):
        fitted._replicate_for_data_parallel()  # pyright: ignore[reportPrivateUsage]


def test_a_container_is_indexed_as_the_model_is() -> None:
    """`fitted[0]` of a Sequential failed: FittedModule was "not subscriptable"."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    fitted: Any = fitted_module(model, sparing)
    for module, original in ((fitted, model), (copy := deepcopy(fitted), copy._original)):
        assert len(module) == 2
        assert list(module) == list(original)
        assert module[-1] is original[1]
        assert type(module[:1]) is nn.Sequential
    fitted[1] = nn.Linear(4, 2)
    assert fitted(torch.randn(3, 4)).shape == (3, 2)
    assert not hasattr(fitted_module(nn.Linear(4, 4), sparing), "__len__")


class Restricted(nn.Linear):
    """A model with methods of `nn.Module` of its own."""

    def parameters(self, recurse: bool = True) -> Any:
        yield self.weight

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.weight.grad = None

    def double(self) -> Any:
        raise TypeError("this model stays in its type")

    def eval(self) -> Any:
        return self.requires_grad_(False).train(False)


def test_methods_of_modules_that_the_model_has_otherwise_are_the_models() -> None:
    """Those of `nn.Module` itself ran: an optimizer got parameters that the model left out."""
    model = Restricted(4, 2)
    fitted: Any = fitted_module(model, sparing)
    assert [*fitted.parameters()] == [model.weight]
    fitted(torch.randn(3, 4)).sum().backward()
    fitted.zero_grad()
    assert model.weight.grad is None
    assert model.bias.grad is not None
    with pytest.raises(TypeError, match="stays in its type"):
        fitted.double()
    assert deepcopy(fitted).eval().weight.requires_grad is False
    assert fitted.eval() is fitted
    assert not model.weight.requires_grad
    assert fitted.requires_grad_() is fitted  # as of `nn.Module`
    assert fitted.float() is fitted


@lru_cache
def positions(count: int) -> torch.Tensor:
    return torch.linspace(0, 1, count)


class Proxy:
    """A value that stands for another within a request, as of web frameworks."""

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("outside of a request")


HELPERS: Any = ModuleType("helpers_of_a_model")
HELPERS.positions, HELPERS.request = lru_cache(positions.__wrapped__), Proxy()


class Positioned(nn.Linear):
    """A model with positions that a function computes once."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return super().forward(input) + positions(self.out_features)


class PositionedByModule(nn.Linear):
    """The same, with a function of a module that the model's imports by name."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return super().forward(input) + HELPERS.positions(self.out_features)


@pytest.mark.parametrize("runs_before", [False, True])
@pytest.mark.parametrize("kind", [Positioned, PositionedByModule])
def test_tensors_in_caches_of_functions(kind: type[nn.Linear], runs_before: bool) -> None:
    """A trace read those of other calls there, and left its own: models were refused, and ran no
    more."""
    positions.cache_clear()
    HELPERS.positions.cache_clear()
    model, x = kind(4, 4), torch.randn(3, 4)
    eager = deepcopy(model)
    if runs_before:
        model(x)
    fitted = fit(model, x, "1MiB", cache=False)
    model.eval()(x)
    model.train()
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager)


class Saving(nn.Linear):
    """A model that saves itself, of which instances are asked for by its class."""

    def save_pretrained(self, folder: str) -> None:
        raise NotImplementedError


class Sharded:
    """A base of classes that a library derives from those of modules."""


def test_a_class_that_is_derived_from_the_models_runs_schedules() -> None:
    """FSDP2 derives one from an object's: fitted models of transformers lost their attributes."""
    model, x = Saving(4, 2), torch.randn(3, 4)
    model.config = {"width": 4}
    fitted: Any = fitted_module(model, sparing)
    assert isinstance(fitted, Saving)
    fitted.__class__ = type("ShardedSaving", (Sharded, fitted.__class__), {})
    assert isinstance(fitted, Sharded)
    assert isinstance(fitted, Saving)
    assert fitted.config is model.config
    fitted(x).sum().backward()
    assert fitted.budgets == (1,)


def test_by_position_and_by_name_is_one_step() -> None:
    """Arguments by name were another kind of step, as were names in another order."""
    model, x = Optional(), torch.randn(4, 4)
    fitted = fitted_module(model, sparing)
    eager = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fitted(x), eager)
        torch.testing.assert_close(fitted(x=x), eager)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * scale


def test_a_target_by_name_in_any_order() -> None:
    """The target was the last name of the call, and beside arguments by position the last of
    these: the loss was of the wrong tensors, without an error where shapes were equal."""
    model = TwoInputs()
    x, scale, y = torch.randn(3, 4, 4).unbind()
    expected = nn.functional.mse_loss(model(x, scale), y)
    fitted = fitted_module(model, sparing, conditions=StepConditions(loss=nn.MSELoss()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for training in (True, False):
            fitted.train(training)
            for loss in (
                fitted(x, scale, y),
                fitted(x, scale, target=y),
                fitted(target=y, x=x, scale=scale),
                fitted(x, labels=y, scale=scale),
                fitted(scale=scale, labels=y, x=x),
            ):
                torch.testing.assert_close(loss, expected)
    with pytest.raises(CaptureError, match="arguments x, scale is the loss's target"):
        fitted(x=x, scale=scale)
    for training in (True, False):
        with pytest.raises(CaptureError, match="the only argument is the loss's target, which"):
            fitted.train(training)(x)


class Factor:
    """An argument that is hashed by identity."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Scaled(nn.Module):
    """A linear layer, and a function of its output and of an argument that is no tensor."""

    def __init__(self, scaled: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.scaled = nn.Linear(4, 4), scaled

    def forward(self, x: torch.Tensor, scale: Any) -> torch.Tensor:
        return self.scaled(self.linear(x), scale)


def raised(scale: Any) -> Any:
    """Return another argument: an object changes in place."""
    if isinstance(scale, Factor):
        scale.factor = 10.0
        return scale
    if isinstance(scale, np.ndarray):
        scale[2000] = 7.0  # what the array's text leaves out
        return scale
    return -scale


@pytest.mark.parametrize(
    ("scale", "scaled"),
    [
        (Factor(1.0), lambda y, scale: y * scale.factor),
        (np.ones(20_000), lambda y, scale: y * float(scale[2000])),
        (0.0, lambda y, scale: torch.copysign(y, torch.full((), scale))),
    ],
    ids=["an object", "an array", "zero"],
)
def test_arguments_are_told_apart_by_content(scale: Any, scaled: Any) -> None:
    """Steps went on with what the trace had read of them."""
    model, x = Scaled(scaled), torch.randn(3, 4)
    fitted = fitted_module(model, sparing, captures=2)
    torch.testing.assert_close(fitted(x, scale), model(x, scale))
    scale = raised(scale)
    torch.testing.assert_close(fitted(x, scale), model(x, scale))


def test_hooks_of_all_modules_run_with_a_warning_and_are_not_captured() -> None:
    model, (x,) = CASES["perceptron"]()
    fitted = fitted_module(model, sparing, captures=2)
    expected = fitted(x)
    hook = nn.modules.module.register_module_forward_hook(lambda _m, _i, output: output * 2)
    try:
        with pytest.warns(UserWarning, match="hooks, arguments or attributes"):
            torch.testing.assert_close(fitted(x), 2 * model(x))  # it is a module of its own, too
        with pytest.raises(CaptureError, match="torch has hooks of all modules"):
            fitted_module(deepcopy(model), sparing)(x)
    finally:
        hook.remove()
    torch.testing.assert_close(fitted(x), expected)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_full_backward_pre_hook"])
def test_a_new_hook_runs_the_module_with_a_warning(register: str) -> None:
    """A step was captured anew and refused, or a hook not noticed: it did not run."""
    model, (x,) = CASES["perceptron"]()
    fitted = fitted_module(model, sparing, captures=2)
    fitted(x).sum().backward()
    runs: list[str] = []
    hook = getattr(model[1], register)(lambda *_: runs.append("hook"))
    with pytest.warns(UserWarning, match="hooks, arguments or attributes"):
        fitted(x).sum().backward()
    assert runs == ["hook"]
    hook.remove()
    fitted(x).sum().backward()
    assert runs == ["hook"]
