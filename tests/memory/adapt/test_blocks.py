"""Blocks of a model under one budget, alone and sharded by FSDP2."""

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headrace.memory import BudgetError, CaptureError, HeldBytes, fit_blocks
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.plan.solution import SolveProgress
from tests.conformance.launch import outputs, ranks
from tests.memory.training import assert_trains_alike

pytestmark = pytest.mark.sampled(4)

CPU = torch.device("cpu")
JOB = Path(__file__).with_name("fsdp_job.py")
FSDP_BUDGET = 1_700_000
BLOCKS = 4
WIDTH = 32


class Chain(nn.Module):
    """Layers that share a budget, and a head outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH),
                nn.GELU(),
                nn.LayerNorm(4 * WIDTH),
                nn.Dropout(0.1),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def chain() -> Chain:
    torch.manual_seed(0)
    return Chain()


def sample(rows: int = 512) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def peak(model: nn.Module, loss: nn.Module | None = None) -> int:
    """Return the bytes of a step, with parameters, input and target."""
    model.zero_grad()
    x, y = sample(), torch.zeros(512, dtype=torch.int64)
    there = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), x))
    there += y.nbytes if loss else 0

    def step() -> torch.Tensor:
        return loss(model(x), y) if loss else model(x).square().mean()

    found = allocations_of(lambda: step().backward(), CPU)
    model.zero_grad()
    return there + found.peak_bytes


def test_a_step_is_within_the_budget_with_the_same_gradients(
    chain: Chain, cache_folder: Path
) -> None:
    model = deepcopy(chain)
    plain = peak(model)
    blocks = list(model.layers)
    with pytest.raises(BudgetError, match="the plans found for the blocks need") as least:
        fit_blocks(model, blocks, sample(), 1000)
    assert list(model.layers) == blocks
    assert least.value.least_bytes is not None
    budget = max(least.value.least_bytes, int(0.7 * plain))
    assert budget < 0.85 * plain
    fitted = fit_blocks(model, blocks, sample(), budget)
    assert list(model.layers) == list(fitted.blocks)
    assert list(model.state_dict()) == list(chain.state_dict())
    assert len({each.plans[0].profile.model_digest for each in fitted.blocks}) <= 2
    x = sample()
    assert_trains_alike(lambda: model(x), model, lambda: eager(x), eager := deepcopy(chain))
    assert peak(model) <= budget
    assert fitted.set_budget(2 * plain) > budget
    assert peak(model) > budget


def test_blocks_can_store_their_input_alone(cache_folder: Path) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(BLOCKS)
    )
    model, x = nn.Sequential(*layers), torch.randn(16, 64, WIDTH)
    there = sum(each.nbytes for each in (*model.parameters(), x))

    def checkpointed() -> torch.Tensor:
        out = x
        for layer in layers:
            out = checkpoint(layer, out, use_reentrant=False)
        return out.square().mean()

    rival = there + allocations_of(lambda: checkpointed().backward(), CPU).peak_bytes
    with pytest.raises(BudgetError, match="the plans found for the blocks need") as least:
        fit_blocks(model, list(layers), x, 1000)
    assert least.value.least_bytes is not None
    assert least.value.least_bytes < 1.25 * rival


def test_blocks_outside_of_the_model_or_called_twice_are_refused(chain: Chain) -> None:
    with pytest.raises(CaptureError, match="no module inside"):
        fit_blocks(chain, [nn.Linear(2, 2)], sample(), "1GiB")
    with pytest.raises(CaptureError, match="there are no blocks"):  # was an IndexError
        fit_blocks(chain, [], sample(), "1GiB")

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    model = Twice()
    with pytest.raises(CaptureError, match="module 'layer' is called 2 times"):
        fit_blocks(model, [model.layer], sample(), "1GiB")


class Cached(nn.Module):
    """A layer that adds to an object that its model makes, as caches of keys are added to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, cache: SimpleNamespace) -> torch.Tensor:
        cache.keys = torch.cat([cache.keys, self.layer(x)])
        return cache.keys


class MakesCaches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Cached() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = SimpleNamespace(keys=x)
        for layer in self.layers:
            x = layer(x, cache)
        return x


def test_a_cache_of_keys_among_arguments_is_an_error_with_a_remedy() -> None:
    """As transformers makes them unless told otherwise: the error was torch's own assertion."""
    model = MakesCaches()
    with pytest.raises(CaptureError, match=r"config\.use_cache = False before fit_blocks"):
        fit_blocks(model, list(model.layers), torch.randn(3, 2), "1MiB")


class Scaling(Chain):
    """A chain behind a part that looks at values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / x.abs().amax().item() if x.isfinite().all() else x.nan_to_num()
        return super().forward(x)


def test_a_part_outside_of_the_blocks_may_look_at_values() -> None:
    """It was refused, though only blocks are captured: on fake tensors there are no values."""
    torch.manual_seed(0)
    model, x = Scaling(), sample()
    eager = deepcopy(model)
    fit_blocks(model, list(model.layers), x, "1GiB")
    assert_trains_alike(lambda: model(x), model, lambda: eager(x), eager)


class Dropping(Chain):
    """A chain whose layers are dropped at random (LayerDrop)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            if torch.rand([]) < 0.3:
                continue
            x = x + layer(x)
        return self.head(x)


def test_blocks_may_be_dropped_at_random() -> None:
    """They were refused as never called: a comparison with a random number was true."""
    torch.manual_seed(0)
    model, x = Dropping(), sample()
    eager = deepcopy(model)
    fit_blocks(model, list(model.layers), x, "1GiB")
    assert_trains_alike(lambda: model(x), model, lambda: eager(x), eager)


def test_a_head_that_needs_more_than_the_blocks_is_counted(chain: Chain) -> None:
    """Once only what it stores was counted, and not what it needs while it runs."""
    model = deepcopy(chain)
    head = nn.Sequential(nn.Linear(WIDTH, 3000), nn.Softmax(-1), nn.Linear(3000, 2))
    model.head = head  # pyright: ignore
    fitted = fit_blocks(model, list(model.layers), sample(), "1GiB")
    predicted = fitted.set_budget("1GiB")
    found = peak(model)
    assert 0.9 * predicted <= found <= predicted


def test_a_loss_is_counted(chain: Chain) -> None:
    model, loss = deepcopy(chain), nn.CrossEntropyLoss()
    model.head = nn.Linear(WIDTH, 3000)
    given = sample(), torch.zeros(512, dtype=torch.int64)
    fitted = fit_blocks(model, list(model.layers), given, "1GiB", loss=loss)
    predicted = fitted.set_budget("1GiB")
    found = peak(model, loss)
    assert 0.9 * predicted <= found <= predicted


@pytest.mark.parametrize("shards", [1, 2])
def test_frozen_parameters_have_no_gradients(chain: Chain, shards: int) -> None:
    """They were counted: of adapters alone, within a frozen model, budgets were refused."""
    figures: list[HeldBytes] = []
    for freeze in (False, True):
        model = deepcopy(chain)
        for layer in model.layers:
            layer[4].requires_grad_(not freeze)  # pyright: ignore
        fitted = fit_blocks(
            model, list(model.layers), sample(8), "1GiB", accumulates=True, shards=shards
        )
        figures.append(fitted.held)
    all_trained, some_frozen = figures
    frozen_bytes = BLOCKS * 4 * (4 * WIDTH + 1) * WIDTH // shards
    for more, fewer in zip(all_trained.running_bytes, some_frozen.running_bytes, strict=True):
        assert more - fewer >= frozen_bytes
    for more, fewer in zip(all_trained.between_bytes, some_frozen.between_bytes, strict=True):
        assert more - fewer >= frozen_bytes


def test_options_of_fit_are_those_of_blocks(chain: Chain) -> None:
    model = deepcopy(chain)
    seen: list[SolveProgress] = []
    fitted = fit_blocks(
        model,
        list(model.layers),
        sample(),
        "1GiB",
        conditional=True,
        watts={"mm": 40, "default": 10},
        progress=seen.append,
        cache=False,
    )
    assert seen
    plans = fitted.blocks[0].plans
    assert all(plan.energy_uj is not None for plan in plans)
    ways = {way.name for each in plans[0].profile.graph.operators for way in each.implementations}
    assert "from output" in ways
    model(sample()).sum().backward()
    with pytest.raises(CaptureError, match="offload needs a model on an accelerator"):
        fit_blocks(chain, list(chain.layers), sample(), "1GiB", offload=True)


@pytest.mark.sampled(1, of="whole jobs")
def test_gradients_under_fsdp(cache_folder: Path) -> None:
    with ranks(2, JOB, "gloo", str(FSDP_BUDGET), HEADRACE_CACHE=str(cache_folder)) as processes:
        texts = outputs(processes)
    for process, text in zip(processes, texts, strict=True):
        assert process.returncode == 0, text
        assert "equal after 3 steps" in text, text


def test_the_budget_holds_under_fsdp(cache_folder: Path) -> None:
    with ranks(1, JOB, "fake", str(FSDP_BUDGET), HEADRACE_CACHE=str(cache_folder)) as (process,):
        (text,) = outputs([process])
    assert process.returncode == 0, text
    assert f"within {FSDP_BUDGET}" in text, text
