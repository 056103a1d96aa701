"""A user's optimizer between steps: its states, rates, averages and norms of gradients."""

import copy

import pytest
import torch
from torch import nn

from headrace.embeddings.run.model.fit import fit_connected
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob
from tests.embeddings.run.model.fits import DATA, fitted_model, sparse_and_dense, tables_of
from tests.embeddings.run.models import DLRM, loss_of, steps, torch_batches


def test_states_of_optimizers_are_the_same_in_a_batch_and_between(executor: Executor) -> None:
    """They had the batch's rows among the parameters: no other moment could load them."""
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.named_parameters(), lr=0.1)
    connect = InProcessJob(DATA).connect(executor)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=connect)
    between = copy.deepcopy(optimizer.state_dict())
    loss_of(fitted, next(iter(batches))).backward()
    state = optimizer.state_dict()
    assert state["param_groups"] == between["param_groups"]
    optimizer.load_state_dict(between)
    parameters = optimizer.param_groups[0]["params"]
    assert len(parameters) == len(list(fitted.parameters())), "the batch's rows are missing"
    for groups in ([], [{"params": [0]}]):
        with pytest.raises(ValueError, match="loaded state dict"):  # it left the rows out
            optimizer.load_state_dict({"state": {}, "param_groups": groups})
    assert len(optimizer.param_groups[0]["params"]) == len(parameters)
    optimizer.step()
    optimizer.load_state_dict(state)
    batches.close()


def test_parameters_that_are_averaged_after_steps_are_those_of_the_dense_part(
    executor: Executor,
) -> None:
    """Rows of the last batch were among them: RuntimeError, sizes of other parameters."""
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    expected = torch.optim.swa_utils.AveragedModel(whole)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    steps(
        whole,
        torch_batches(DATA.batches),
        [reference_optimizer],
        after_step=lambda: expected.update_parameters(whole),
    )
    fitted, batches, optimizer, _ = fitted_model(executor, model)
    average = torch.optim.swa_utils.AveragedModel(fitted)
    with batches:
        update = lambda: average.update_parameters(fitted)  # noqa: E731
        steps(fitted, batches, [optimizer], after_step=update)
    averaged = dict(average.module.named_parameters())
    assert len(averaged) == 6
    for name, weight in averaged.items():
        assert torch.equal(weight, expected.module.get_parameter(name)), name


def test_a_group_without_a_rate_changes_no_row(executor: Executor) -> None:
    model = DLRM()
    before = model.tables[0].weight.detach().clone()
    tables, dense = sparse_and_dense(model)
    optimizer = torch.optim.Adagrad(
        [{"params": tables[:1], "lr": 0.0}, {"params": tables[1:] + dense}]
    )
    job = InProcessJob(DATA)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=job.connect(executor))
    with batches:
        steps(fitted, batches, [optimizer])
        weights = batches.weights()
    assert torch.equal(weights["tables.0.weight"], before)
    assert not torch.equal(weights["tables.1.weight"], tables[1].detach())


def test_norms_are_clipped_with_the_rows_gradients(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    reference_optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    steps(
        whole,
        torch_batches(DATA.batches),
        [reference_optimizer],
        lambda: nn.utils.clip_grad_norm_(whole.parameters(), 0.05),
    )
    fitted, batches, optimizer, job = fitted_model(executor, model)
    with batches:
        clip = lambda: nn.utils.clip_grad_norm_(fitted.parameters(), 0.05)  # noqa: E731
        steps(fitted, batches, [optimizer], clip)
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(trained[name], weight.detach(), rtol=1e-5, atol=1e-6)


def test_norms_of_groups_are_clipped_with_the_gradients_of_their_own_rows(
    executor: Executor,
) -> None:
    """Rows were in the first group, whichever had their weights."""

    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        tables, dense = sparse_and_dense(model)
        return torch.optim.SGD([{"params": dense}, {"params": tables, "lr": 0.5}], lr=0.3)

    def clip(optimizer: torch.optim.Optimizer) -> None:
        for options in optimizer.param_groups:
            nn.utils.clip_grad_norm_(options["params"], 0.02)

    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    plain = grouped(whole)
    steps(whole, torch_batches(DATA.batches), [plain], lambda: clip(plain))
    own, job = grouped(model), InProcessJob(DATA)
    fitted, batches = fit_connected(model, DATA, optimizer=own, connect=job.connect(executor))
    with batches:
        steps(fitted, batches, [own], lambda: clip(own))
    assert [len(options["params"]) for options in own.param_groups] == [6, 0]
    trained = tables_of(job, fitted)
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(trained[name], weight.detach(), rtol=1e-5, atol=1e-6)
