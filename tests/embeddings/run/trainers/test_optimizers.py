"""Row optimizers against torch's own on the same coalesced sparse gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.trainers.optimizers import RowOptimizer

ROWS, STEPS = 40, 60

Factory = Callable[[list[Tensor]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Factory] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.37),
    "sgd upwards": lambda parameters: torch.optim.SGD(parameters, lr=0.37, maximize=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(
        parameters, lr=0.11, lr_decay=0.013, initial_accumulator_value=0.1, eps=1e-7
    ),
    "adagrad upwards": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, maximize=True),
    "sparse adam": lambda parameters: torch.optim.SparseAdam(
        parameters, lr=0.03, betas=(0.87, 0.993), eps=1e-6
    ),
    "sparse adam upwards": lambda parameters: torch.optim.SparseAdam(
        parameters, lr=0.03, maximize=True
    ),
}


class RowWiseAdagrad(torch.optim.Optimizer):
    """An optimizer with the options of TorchRec's."""

    def __init__(self, parameters: list[Tensor], **options: float) -> None:
        defaults = {"lr": 0.01, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10}
        super().__init__(parameters, defaults | options)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise AssertionError("only its options are read")


def rows_with_state(values: Tensor, optimizer: RowOptimizer) -> Tensor:
    state = optimizer.state_per_row + optimizer.state_per_number * values.shape[1]
    initial = torch.full((len(values), state), optimizer.state_initial, dtype=values.dtype)
    return torch.cat([values.clone(), initial], dim=1)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, in its Adagrad
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [1, 7, 16, 48])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_torch_s_bit_for_bit(name: str, dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(dim)
    table = nn.Embedding(ROWS, dim, sparse=True, dtype=dtype)
    with torch.no_grad():
        table.weight.copy_(torch.randn(ROWS, dim, dtype=dtype, generator=generator))
    reference = OPTIMIZERS[name]([table.weight])
    schedule = torch.optim.lr_scheduler.ExponentialLR(reference, 0.97)
    optimizer = RowOptimizer(reference)
    rows = rows_with_state(table.weight.detach(), optimizer)
    for step in range(1, STEPS + 1):
        count = int(torch.randint(1, 30, (), generator=generator))
        ids = torch.randint(ROWS, (count,), generator=generator)
        coefficients = torch.randn(len(ids), dim, dtype=dtype, generator=generator)
        reference.zero_grad()
        (table(ids) * coefficients).sum().backward()
        gradient = table.weight.grad
        assert gradient is not None
        table.weight.grad = gradient = gradient.coalesce()
        used = gradient.indices()[0]
        gathered = rows[used]
        optimizer.update()(gathered, gradient.values(), step)
        rows[used] = gathered
        reference.step()
        schedule.step()
        assert torch.equal(rows[:, :dim], table.weight.detach())
    if optimizer.state_per_number:
        state = reference.state[table.weight]
        names = ("sum",) if optimizer.state_per_number == 1 else ("exp_avg", "exp_avg_sq")
        assert torch.equal(rows[:, dim:], torch.cat([state[name] for name in names], dim=1))


def test_row_wise_adagrad_is_fbgemm_s_formula_to_rounding() -> None:
    """EXACT_ROWWISE_ADAGRAD, number by number."""
    optimizer = RowOptimizer(RowWiseAdagrad([nn.Parameter(torch.zeros(1))], lr=0.2, eps=1e-3))
    assert (optimizer.state_per_row, optimizer.state_per_number) == (1, 0)
    random = np.random.default_rng(3)
    numbers, sums = random.standard_normal((5, 6)), np.zeros(5)
    rows = rows_with_state(torch.from_numpy(numbers), optimizer)
    for step in range(1, 30):
        gradients = random.standard_normal((5, 6))
        optimizer.update()(rows, torch.from_numpy(gradients), step)
        for row, gradient in enumerate(gradients):
            sums[row] += sum(value * value for value in gradient) / 6
            multiplier = 0.2 / (np.sqrt(sums[row]) + 1e-3)
            for column, value in enumerate(gradient):
                numbers[row, column] -= multiplier * value
    expected = np.concatenate([numbers, sums[:, None]], axis=1)
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-13, atol=1e-13)


def test_options_that_a_loaded_state_replaces_are_read() -> None:
    reference = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.5)
    optimizer = RowOptimizer(reference)
    state = reference.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    reference.load_state_dict(state)
    rows = torch.zeros(1, 2)
    optimizer.update()(rows, torch.ones(1, 2), 1)
    assert rows.tolist() == [[-0.25, -0.25]]


def test_options_are_those_of_the_embeddings_parameter_group() -> None:
    dense, embedding = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    groups = [{"params": [dense], "momentum": 0.9}, {"params": [embedding], "lr": 2.0}]
    reference = torch.optim.SGD(groups, lr=1.0)
    rows = torch.zeros(1, 2)
    RowOptimizer(reference, group=1).update()(rows, torch.ones(1, 2), 1)
    assert rows.tolist() == [[-2, -2]]
    with pytest.raises(EmbeddingError, match="SGD has momentum 0.9 for embedding rows, needs 0"):
        RowOptimizer(reference)


def test_what_is_not_served_is_refused_by_name() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(EmbeddingError, match="is AdamW, needs one of SGD, Adagrad"):
        RowOptimizer(torch.optim.AdamW(parameters))
    nesterov = torch.optim.SGD(parameters, lr=1.0, momentum=0.5, nesterov=True)
    said = (
        "momentum 0.5 .* a parameter group of their own .*, and a schedule .* cycle_momentum=False"
    )
    with pytest.raises(EmbeddingError, match=said):
        RowOptimizer(nesterov)
    reference = torch.optim.Adagrad(parameters)
    optimizer = RowOptimizer(reference)
    reference.param_groups[0]["weight_decay"] = 0.01
    with pytest.raises(EmbeddingError, match=r"Adagrad has weight_decay 0\.01"):
        optimizer.update()
