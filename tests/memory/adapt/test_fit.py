"""A model fitted into a budget: the memory of its steps, and what they compute."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from headrace.errors import InputError
from headrace.memory import BudgetError, CaptureError, fit, fit_blocks
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.step import StepConditions, capture_step, optimizer_bytes, profile_step
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.stages import Stages
from headrace.memory.run.fitted import FittedModule
from tests.memory.graphs import chain
from tests.memory.training import assert_trains_alike

pytestmark = pytest.mark.sampled(9)

CPU = torch.device("cpu")
BATCH, SIDE, CHANNELS, LAYERS = 8, 32, 8, 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for index in range(LAYERS):
        layers += [
            nn.Conv2d(CHANNELS if index else 3, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    return images, torch.randint(10, (BATCH,), generator=generator)


def plans_of(fitted: nn.Module) -> list[MemoryPlan]:
    assert isinstance(fitted, FittedModule)
    return fitted.plans


def plain_peak() -> int:
    """Peak of a plain step's allocations, beside parameters and inputs, in bytes."""
    model, (x, y) = network(), sample()
    return allocations_of(
        lambda: nn.functional.cross_entropy(model(x), y).backward(), CPU
    ).peak_bytes


class UnusedDropout(nn.Module):
    """A dropout whose result is not read, before one whose result is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dropout(x)
        return self.dropout(self.linear(x))


def test_a_dropout_that_is_not_used_draws_its_numbers() -> None:
    """It was left out of steps: the next one drew the numbers that were its."""
    model, x = UnusedDropout(), torch.randn(4, 8)
    eager = copy.deepcopy(model)
    fitted = fit(model, x, "1MiB", exact=True, cache=False)
    assert_trains_alike(partial(fitted, x), fitted, partial(eager, x), eager)


def test_an_lstm_is_fitted() -> None:
    """Its backward pass ended the process while it was measured."""
    model, x = nn.LSTM(4, 4, batch_first=True), torch.randn(2, 2, 4)
    eager = copy.deepcopy(model)
    fitted = fit(model, x, "1MiB", cache=False)
    for module in (fitted, eager):
        module(x)[0].sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert a.grad is not None
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def test_a_step_is_within_the_budget_and_computes_what_a_plain_one_does() -> None:
    model, (x, y) = network(), sample()
    equal = copy.deepcopy(model)
    loss = nn.CrossEntropyLoss()
    resident = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), x, y))
    budget = resident + plain_peak() // 2
    fitted = fit(model, (x, y), budget, loss=loss)
    (plan,) = plans_of(fitted)
    assert plan.peak_bytes <= budget
    assert plan.bound_us <= plan.time_us
    for _ in range(2):
        found = allocations_of(lambda: fitted(x, y).backward(), CPU)
        assert found.peak_bytes + resident <= budget
        loss(equal(x), y).backward()
        for one, other in zip(model.parameters(), equal.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6)
            one.grad = other.grad = None
        for one, other in zip(model.buffers(), equal.buffers(), strict=True):
            assert torch.allclose(one, other)


def test_state_of_the_optimizer_and_kept_gradients_are_counted() -> None:
    model, (x, y) = network(), sample()
    parameters = sum(-(-each.nbytes // 64) * 64 for each in model.parameters())
    captured = capture_step(model, x, StepConditions())

    def resident(job: StepConditions) -> dict[str, int]:
        return dict(profile_step(model, captured, job, costs=costs).graph.resident)

    costs = {}
    assert "optimizer" not in resident(StepConditions())
    assert resident(StepConditions(accumulates=True))["gradients"] == parameters
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert resident(StepConditions(optimizer=momentum))["optimizer"] == parameters
    before = resident(StepConditions(optimizer=torch.optim.Adam(model.parameters())))["optimizer"]
    adam = torch.optim.Adam(model.parameters())
    nn.functional.cross_entropy(model(x), y).backward()
    adam.step()
    assert resident(StepConditions(optimizer=adam))["optimizer"] == before > 2 * parameters


class Proxies(nn.Module):
    """A loss with parameters: a vector for each class, as losses of metric learning have."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(4096, 10))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output @ self.vectors.t(), target)


def test_kept_gradients_of_a_loss_are_counted() -> None:
    """They were not, and a step needed more than its budget by as many bytes as the loss has."""
    model, loss, (x, y) = network(), Proxies(), sample()
    fitted = fit(model, (x, y), "10MiB", loss=loss, accumulates=True, cache=False)
    trained = [*model.parameters(), *loss.parameters()]
    gradients = sum(-(-each.nbytes // 64) * 64 for each in trained)
    (plan,) = plans_of(fitted)
    assert plan.profile.graph.resident["gradients"] == gradients


def test_frozen_parameters_have_no_state_of_an_optimizer() -> None:
    """Before the first step they counted as if each got a gradient: budgets were refused."""
    model, (x, y) = network(), sample()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    before = optimizer_bytes(optimizer)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert before == optimizer_bytes(optimizer)


def test_states_of_optimizers_before_their_first_step() -> None:
    model = network()
    adam, adamw = (
        optimizer_bytes(kind(model.parameters())) for kind in (torch.optim.Adam, torch.optim.AdamW)
    )
    assert adam == adamw > 0
    assert not torch.optim.AdamW(model.parameters()).state
    adafactor = optimizer_bytes(torch.optim.Adafactor(model.parameters()))  # reads norms
    assert 0 < adafactor < adam
    rates = (0.1, torch.tensor(0.1))  # one of which was refused
    momenta = (torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9) for rate in rates)
    assert len(set(map(optimizer_bytes, momenta))) == 1
    with pytest.raises(CaptureError, match="the state of LBFGS is not known before its first"):
        optimizer_bytes(torch.optim.LBFGS(model.parameters()))


class Codes(torch.Tensor):
    """Numbers of which 8 bits are stored, in a tensor within."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> "Codes":
        wrapper = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # pyright: ignore
        wrapper.codes = codes
        return wrapper

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes)
        raise NotImplementedError(f"{func} of codes")


def test_states_of_a_librarys_own_class_have_the_bytes_within_them() -> None:
    """They were copied, which such a class may not do: "fit after one step" failed behind one."""
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight] = {"sum": Codes(torch.zeros(8, 8, dtype=torch.uint8))}
    plan = plans_of(fit(model, x, "1MiB", optimizer=optimizer, cache=False))[0]
    assert plan.profile.graph.resident["optimizer"] == 64


class Several(nn.Module):
    """A model of several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, pair: Any, *, scale: torch.Tensor) -> torch.Tensor:
        return self.linear(x + pair[0] * pair[1]) * scale


def test_inputs_of_a_profile_have_the_names_of_the_arguments() -> None:
    """They had those of torch's trace, such as primals_3."""
    x, y, z, scale, target = torch.randn(5, 2, 4).unbind()
    sample = {"x": x, "pair": (y, z), "scale": scale, "target": target}
    fitted = fit(Several(), sample, "1MiB", loss=nn.MSELoss(), cache=False)
    names = [tensor.name for tensor in plans_of(fitted)[0].profile.inputs]
    assert names == ["x", "pair[0]", "pair[1]", "target", "scale"]


class Uncopied:
    """An object without copies, such as a progress bar: copies of a fitted module refer to it."""

    def __deepcopy__(self, _copied: object) -> Any:
        raise TypeError("it cannot be copied")

    def show(self, _state: object) -> None:
        pass


class UncopiedOptimizer(Uncopied, torch.optim.SGD):
    pass


def test_a_copy_has_neither_the_optimizer_nor_what_shows_progress() -> None:
    """An average of the weights had a copy of the optimizer's state, too; a bar was an error."""
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = UncopiedOptimizer(model.parameters(), lr=0.1)
    progress = Uncopied().show
    fitted = fit(model, x, "1MiB", optimizer=optimizer, progress=progress, cache=False)
    copied = copy.deepcopy(fitted)
    copied(x).sum().backward()
    assert copied.weight.grad is not None
    assert model.weight.grad is None


def test_a_sample_by_name_ends_with_the_target() -> None:
    model, (x, y) = network(), sample()
    fitted = fit(model, {"input": x, "target": y}, "10MiB", loss=nn.CrossEntropyLoss(), cache=False)
    loss = fitted(input=x, target=y)
    assert torch.allclose(loss, nn.functional.cross_entropy(model(x), y))


def test_norms_under_autocast_are_eagers() -> None:
    """Torch traces statistics of the input's type, which the CPU's kernels return in float32."""
    norms = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    more = (nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 144, 32), nn.LayerNorm(32))
    model, x = nn.Sequential(*norms, *more, nn.Linear(32, 4)), torch.randn(8, 3, 16, 16)

    def loss(called: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return called(x).float().square().mean()

    equal = copy.deepcopy(model)
    there = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), x))
    budget = there + int(0.9 * allocations_of(lambda: loss(equal).backward(), CPU).peak_bytes)
    equal = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        fitted = fit(model, x, budget, exact=True, cache=False)
    found = allocations_of(lambda: loss(fitted).backward(), CPU)
    assert found.peak_bytes + there <= budget
    loss(equal).backward()
    for one, other in zip(model.parameters(), equal.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(model.buffers(), equal.buffers(), strict=True):
        assert torch.equal(one, other)


def test_parameters_of_another_type_are_another_kind_of_step() -> None:
    model = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 4))
    keys = torch.arange(8)
    fitted = fit(model, keys, "10MiB", captures=2, cache=False)
    assert fitted(keys).dtype is torch.float32
    assert fitted.bfloat16()(keys).dtype is torch.bfloat16


def test_nothing_runs_again_before_the_loss() -> None:
    """It needs nothing that would have to: its input is the step's output."""
    captured = capture_step(network(), sample()[0], StepConditions())
    stages = Stages(captured.graph)
    assert stages.first_again == 2
    assert not any(stages.again(1, each) for each in stages.forward)
    assert any(stages.again(2, each) for each in stages.forward)
    draft = Draft.plain(stages)
    draft.again[1][0] = 0
    assert Draft.of(stages, draft.schedule()).again[:3] == [{}, {}, {0: 0}]
    assert Stages(chain(4)).first_again == 1


def distributed() -> nn.Module:
    """Return a wrapped model as far as its type goes: it needs no process group then."""
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = network()
    return wrapped


def test_bad_budgets_and_models_fail_at_once() -> None:
    model, (x, _) = network(), sample()
    with pytest.raises(BudgetError, match="there is no budget"):
        fit(model, x, [])
    for budget in (0, -1, "0B", "lots", "50%", True, 1.5, "1e9"):
        with pytest.raises(BudgetError, match="budget"):
            fit(model, x, budget)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="effort is 'hard', needs one of quick"):
        fit(model, x, "1GiB", effort="hard")
    with pytest.raises(InputError, match="captures is 0, needs 1"):
        fit(model, x, "1GiB", captures=0)
    for bad, reason in (
        (network().eval(), "training mode"),
        (network().to("meta"), "on the meta device, needs values"),
        (nn.Sequential(nn.LazyLinear(2)), "the model is lazy, .*: call it once before"),
        (nn.functional.relu, "the model is a function, needs a torch module"),
        (nn.Sequential(fitted_module(model, lambda _: {})), "fitted already"),
        (distributed(), r"in DistributedDataParallel, .*: DDP\(fit\(model, ddp=True\)\)"),
    ):
        with pytest.raises(CaptureError, match=reason):
            fit(bad, x, "1GiB")  # pyright: ignore[reportArgumentType]
    for empty in ([], (), {}, [()]):  # a model's error about its arguments said nothing of it
        with pytest.raises(CaptureError, match="the sample is empty, needs .* call of Sequential"):
            fit(model, empty, "1GiB")
        with pytest.raises(CaptureError, match="empty, .*, the loss's target behind them"):
            fit(model, empty, "1GiB", loss=nn.MSELoss())
    with pytest.raises(CaptureError, match="the sample is empty"):
        fit_blocks(model, list(model), (), "1GiB")
    with pytest.raises(BudgetError) as refused:
        fit(model, x, "100K")
    least = refused.value.least_bytes
    assert least is not None
    assert 100 << 10 < least < plain_peak() + (1 << 20)
    fitted = fit(model, x, least)
    assert plans_of(fitted)[0].peak_bytes <= least
    with pytest.raises(BudgetError, match=r"a later step, of \[16, 3, 32, 32\] float32: no sch"):
        fitted(torch.cat([x, x]))


def test_a_budget_below_the_logits_splits_the_loss() -> None:
    """A head that is tied to the embedding: its gradients are summed from two operators."""
    torch.manual_seed(3)
    words, width = 4096, 8
    tokens, targets = torch.randint(words, (2, 4, 32)).unbind()
    embedding, head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(width, width), nn.GELU(), nn.Flatten(0, 1), head)
    inputs = tokens, targets.flatten()
    loss, equal = nn.CrossEntropyLoss(), copy.deepcopy(model)
    resident = sum(each.nbytes for each in (*model.parameters(), *inputs))
    plain = allocations_of(lambda: loss(equal(tokens), inputs[1]).backward(), CPU).peak_bytes
    budget = resident + plain // 4
    assert plain // 4 < tokens.numel() * words * 4  # the logits
    with pytest.raises(BudgetError):
        fit(model, inputs, budget, loss=loss, exact=True)
    fitted = fit(model, inputs, budget, loss=loss)
    found = allocations_of(lambda: fitted(*inputs).backward(), CPU)
    assert found.peak_bytes + resident <= budget
    for one, other in zip(model.parameters(), equal.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_norms_from_their_outputs_on_request() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
    x = torch.randn(256, 64)
    fitted = fit(model, x, "10MiB", conditional=True, cache=False)
    found = {
        way.name for each in fitted.plans[0].profile.graph.operators for way in each.implementations
    }
    assert "from output" in found
    fitted(x).square().mean().backward()
    with pytest.raises(InputError, match="lossy and conditional exclude each other"):
        fit(model, x, "10MiB", lossy=True, conditional=True)


def test_results_that_a_kernel_lays_out_otherwise_than_traced_are_within_the_budget() -> None:
    """Its gradient of the loss is contiguous, and a convolution copied it beside the plan."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 3, 1))
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    y = torch.randn(4, 3, SIDE, SIDE)
    x = y.contiguous(memory_format=torch.channels_last)
    loss, equal = nn.MSELoss(), copy.deepcopy(model)
    resident = sum(each.nbytes for each in (*model.parameters(), x, y))
    with pytest.raises(BudgetError) as refused:
        fit(model, (x, y), 1, loss=loss, cache=False)
    assert refused.value.least_bytes is not None
    fitted = fit(model, (x, y), refused.value.least_bytes, loss=loss, cache=False)
    found = allocations_of(lambda: fitted(x, y).backward(), CPU)
    assert found.peak_bytes + resident <= refused.value.least_bytes
    loss(equal(x), y).backward()
    for one, other in zip(model.parameters(), equal.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert fitted(x, y).untyped_storage().nbytes() == 4
