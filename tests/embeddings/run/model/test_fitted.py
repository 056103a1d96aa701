"""Batches of a fitted model: epochs, steps, and evaluation between epochs."""

import copy
from typing import cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headrace.embeddings import EmbeddingError, LoaderData
from headrace.errors import ForkError
from headrace.executor import Executor
from tests.embeddings.run.in_process import ListData, clicks, with_bags
from tests.embeddings.run.model.fits import BAGS, DATA, fitted_model
from tests.embeddings.run.models import DLRM, ROWS, Bags, loss_of, steps, torch_batches
from tests.forked import status_of_child


def test_evaluation_between_epochs_reads_the_rows_that_were_trained(executor: Executor) -> None:
    torch.manual_seed(1)
    model = DLRM()
    whole = copy.deepcopy(model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    tests = clicks(ROWS, [6, 1], seed=9)
    data = clicks((3, 3, 3), [8, 8, 3])  # many rows are in the tests alone
    fitted, batches, own, job = fitted_model(executor, model, data)
    model.bottom.eval()
    with batches:
        for _ in range(2):
            for batch, plain in zip(
                batches.evaluate(tests), torch_batches(tests.batches), strict=True
            ):
                assert not model.training
                with torch.no_grad():
                    assert torch.equal(loss_of(fitted, batch), loss_of(whole, plain))
            assert model.training
            assert not model.bottom.training
            steps(fitted, batches, [own])
            steps(whole, torch_batches(data.batches), [optimizer])
    assert job.closed == 1


def test_labels_have_the_form_of_the_loader(executor: Executor) -> None:
    """Those of [examples, 1] were [examples]: losses paired every score with every label."""
    columns = [torch.cat(parts) for parts in zip(*torch_batches(DATA.batches), strict=True)]
    examples = TensorDataset(*columns[:2], columns[2][:, None])
    data = LoaderData(DataLoader(examples, batch_size=16), batch=16, columns=len(ROWS))
    _, batches, _, _ = fitted_model(executor, data=cast("ListData", data))
    with batches:
        assert next(batches.evaluate(data))[2].shape == (16, 1)
    _, batches, _, _ = fitted_model(executor, data=cast("ListData", data))
    _, _, labels = next(iter(batches))
    assert torch.equal(labels, columns[2][:16, None])
    batches.close()


def test_evaluation_refuses_ids_outside_of_their_table(executor: Executor) -> None:
    _, batches, _, _ = fitted_model(executor)
    with (
        batches,
        pytest.raises(
            EmbeddingError, match=r"^evaluation: example \d+: table tables\.1: id \d+, needs 0 to 6"
        ),
    ):
        list(batches.evaluate(clicks((20, 1000, 40), [16])))


def test_weights_have_their_names_in_the_state_of_a_model(executor: Executor) -> None:
    """Where the model is an embedding module itself, its class stood before "weight"."""
    for model, forward in (
        (DLRM(), None),
        (nn.Embedding(max(ROWS), 4), lambda model, batch: model(batch[1])),
    ):
        names = {*model.state_dict()}
        _, batches, _, _ = fitted_model(executor, model, forward=forward)
        with batches:
            weights = batches.weights()
        assert weights
        assert weights.keys() <= names


def test_an_epoch_that_is_left_has_to_be_ended(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    for action in (batches.__iter__, lambda: batches.evaluate(DATA)):
        with pytest.raises(EmbeddingError, match="epoch 0 has not ended"):
            action()
    steps(fitted, epoch, [optimizer])
    assert batches.epoch == 1
    assert len(steps(fitted, batches, [optimizer])) == len(DATA.batches)
    batches.close()
    with pytest.raises(
        EmbeddingError, match="the batches are closed: epoch 2 needs another fit, of a"
    ):
        iter(batches)


def test_an_iterator_that_is_dropped_unused_is_no_epoch_and_no_evaluation(
    executor: Executor,
) -> None:
    """As of a zip whose other part was empty: all else then needed an end that none could make."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    with batches:
        for iterable in (batches, batches.evaluate(DATA)):
            assert list(zip((), iterable, strict=False)) == []
        waiting = batches.evaluate(DATA)
        assert len(steps(fitted, batches, [optimizer])) == len(DATA.batches)
        epoch = iter(batches)
        steps(fitted, [next(epoch)], [optimizer])
        with pytest.raises(EmbeddingError, match="epoch 1 has not ended"):
            next(waiting)
        steps(fitted, epoch, [optimizer])


def test_an_evaluation_that_is_left_ends_as_its_iterator_is_closed(executor: Executor) -> None:
    """A progress bar holds it: the remedy was to close the batches, which ends the job."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    with batches:
        evaluation = batches.evaluate(DATA)
        next(evaluation)
        with pytest.raises(EmbeddingError, match="an evaluation has not ended, .* or close that$"):
            iter(batches)
        evaluation.close()
        assert len(steps(fitted, batches, [optimizer])) == len(DATA.batches)


def test_batches_belong_to_the_process_that_made_them(executor: Executor) -> None:
    """A child that ended closed its parent's connections, and ended the processes of its job."""
    fitted, batches, optimizer, job = fitted_model(executor)
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    next(epoch)

    def use() -> None:
        for action in (optimizer.step, batches.weights, lambda: next(epoch)):
            with pytest.raises(ForkError, match=r"^the job of these batches belongs to the proc"):
                action()
        batches.close()
        batches._finalizer()

    assert status_of_child(use) == 0
    assert job.closed == 0
    optimizer.step()
    steps(fitted, epoch, [optimizer])
    batches.close()
    assert job.closed == 1


def test_a_batch_has_one_step(executor: Executor) -> None:
    fitted, batches, optimizer, _ = fitted_model(executor)
    with pytest.raises(EmbeddingError, match="a step without a batch"):
        optimizer.step()
    epoch = iter(batches)
    steps(fitted, [next(epoch)], [optimizer])
    with pytest.raises(EmbeddingError, match="a step without a batch"):
        optimizer.step()
    next(epoch)
    with pytest.raises(EmbeddingError, match="batch 1 had no step: call it after backward"):
        next(epoch)
    batches.close()


def test_rows_are_looked_up_in_batches_by_their_own_columns(executor: Executor) -> None:
    model = DLRM()
    _, batches, _, _ = fitted_model(executor, model)
    with pytest.raises(EmbeddingError, match=r"tables\.0 is used outside of a batch"):
        model(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))
    _, ids, _ = next(iter(batches))
    with pytest.raises(EmbeddingError, match=r"tables\.1 gets ids of other columns"):
        model.tables[1](ids[:, 2:])
    batches.close()


def test_bags_of_a_column_that_had_none_are_refused(executor: Executor) -> None:
    """Their first ids, as many as examples, were looked up as those of the examples."""
    _, batches, _, _ = fitted_model(executor, DLRM())
    with batches, pytest.raises(EmbeddingError, match=r"column 1, which tables\.1 .* has bags of"):
        next(batches.evaluate(with_bags(DATA, [1])))


def test_evaluation_without_bags_has_the_form_of_bags(executor: Executor) -> None:
    """The model got a tensor where it had (ids, offsets) in training."""
    fitted, batches, _, _ = fitted_model(executor, Bags(), BAGS)
    with batches:
        evaluation = batches.evaluate(clicks((*ROWS, 9), [16]))
        dense, ids, _ = next(evaluation)
        assert ids[2][1].tolist() == [*range(16)]
        assert fitted(dense, ids).shape == (16,)


def test_evaluation_data_of_another_form_are_refused(executor: Executor) -> None:
    """A loader had no attribute "read", and columns behind those of training were not looked up."""
    _, batches, _, _ = fitted_model(executor)
    loader = DataLoader(TensorDataset(torch.zeros(4, 3)))
    with batches:
        with pytest.raises(
            EmbeddingError, match=r"^data is a DataLoader: pass LoaderData\(loader, "
        ):
            batches.evaluate(cast("ListData", loader))
        for rows in ((*ROWS, 9), ROWS[:2]):
            with pytest.raises(
                EmbeddingError, match=f"have {len(rows)} columns of ids, needs the 3"
            ):
                batches.evaluate(clicks(rows, [4]))
        assert next(batches.evaluate(clicks(ROWS, [4])))


def test_a_step_without_the_batches_is_named(executor: Executor) -> None:
    """It was a ReferenceError: a function had returned the model and the optimizer alone."""
    _, batches, optimizer, _ = fitted_model(executor)
    del batches
    with pytest.raises(EmbeddingError, match="the batches that fit returned are gone"):
        optimizer.step()


def test_the_rows_of_a_batch_are_no_part_of_states(executor: Executor) -> None:
    fitted, batches, _, _ = fitted_model(executor)
    names = [name for name in fitted.state_dict() if name.startswith("tables")]
    next(iter(batches))
    assert sum(1 for name, _ in fitted.named_parameters() if name.startswith("tables")) == 3
    assert names == [name for name in fitted.state_dict() if name.startswith("tables")] == []
    fitted.load_state_dict(fitted.state_dict())
    batches.close()


def test_a_batch_without_examples_is_not_in_the_loop(executor: Executor) -> None:
    """As of lines that were all rejected: its mean loss was no number."""
    data = clicks(ROWS, [8, 0, 8, 0])
    fitted, batches, optimizer, _ = fitted_model(executor, data=data)
    with batches:
        for epoch in (1, 2):
            assert len(steps(fitted, batches, [optimizer])) == 2
            assert (batches.epoch, batches.batch) == (epoch, 4 * epoch)
