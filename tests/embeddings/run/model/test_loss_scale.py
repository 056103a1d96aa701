"""Mixed precision: losses are torch's, and a step that a scaler skips changes no row."""

import copy
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.model.fit import fit_connected
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob
from tests.embeddings.run.model.fits import DATA, OPTIMIZERS, fitted_model, tables_of
from tests.embeddings.run.models import (
    DLRM,
    gradients_of_used_rows,
    loss_of,
    torch_batches,
)


def test_autocast_has_the_losses_of_torch(executor: Executor) -> None:
    def cast(
        model: nn.Module, batches: Iterable[Sequence[Tensor]], optimizer: torch.optim.Optimizer
    ) -> list[float]:
        losses: list[float] = []
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, tuple(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    fitted, batches, own, _ = fitted_model(executor, model)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    with batches:
        losses = cast(whole, torch_batches(DATA.batches), reference_optimizer)
        assert cast(fitted, batches, own) == losses


def scaled_steps(
    model: nn.Module,
    batches: Iterable[Sequence[Tensor]],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    before_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train with a scaled loss, which overflows in one batch; return the scales."""
    scales: list[float] = []
    for number, batch in enumerate(batches):
        loss = loss_of(model, tuple(batch)) * (torch.inf if number == 3 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        before_step()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_step_that_a_scaler_skips_changes_no_row(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    (plain,) = OPTIMIZERS["adagrad"](whole)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with gradients_of_used_rows(whole) as convert:
        scales = scaled_steps(whole, torch_batches(DATA.batches), plain, scaler, convert)
    assert scales[2:4] == [2.0**10, 2.0**9]
    (optimizer,) = OPTIMIZERS["adagrad"](model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(
        model, DATA, optimizer=optimizer, connect=job.connect(executor), scaler=scaler
    )
    with batches:
        assert scaled_steps(fitted, batches, optimizer, scaler) == scales
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        assert torch.equal(trained[name], weight.detach()), name


def test_a_scaler_that_fit_does_not_know_is_refused(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with pytest.raises(EmbeddingError, match="batch 3 had no step: .* pass it as scaler="):
        scaled_steps(fitted, batches, optimizer, scaler)
    batches.close()


def test_a_fused_optimizer_is_refused_with_a_scaler(executor: Executor) -> None:
    model = DLRM()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(
        model, DATA, optimizer=optimizer, connect=job.connect(executor), scaler=scaler
    )
    with pytest.raises(EmbeddingError, match="make it with fused=False"):
        scaled_steps(fitted, batches, optimizer, scaler)
    batches.close()
