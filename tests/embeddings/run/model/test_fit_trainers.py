"""Two trainers' steps are those of one process, where shares are empty and a scaler skips some."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headrace.embeddings import EmbeddingError, LoaderData
from headrace.embeddings.run.job.job_processes import JobHosts
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.embeddings.run.model.fit import fit_connected
from headrace.embeddings.run.model.fitted import Batch
from headrace.errors import CommunicationError
from headrace.executor import Executor
from tests.conformance.groups import each, group
from tests.embeddings.run import bags_job
from tests.embeddings.run.in_process import InProcessJob, clicks
from tests.embeddings.run.job.test_job import job_options
from tests.embeddings.run.model.fits import CommittingJob
from tests.embeddings.run.models import torch_batches
from tests.waiting import no_hang

SCRIPT = Path(bags_job.__file__)


@pytest.mark.slow
def test_two_trainers_skip_the_same_steps_and_refuse_alike(tmp_path: Path) -> None:
    data = tmp_path / "bags.parquet"
    bags_job.write(data)
    lines: list[tuple[str, str]] = []
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(data), str(tmp_path / "learned ")],
        job_options(cache_bytes=1 << 20),
        JobHosts.on_this_machine(trainers=2, servers=1, readers=1),
        on_line=lambda name, line: lines.append((name, line)),
        environment={"PYTHONPATH": str(Path.cwd())},
    )
    model = bags_job.model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    batches = bags_job.examples().batches
    for epoch in range(bags_job.EPOCHS):
        plain = torch_batches(batches)
        bags_job.train(model, optimizer, scaler, plain, epoch=epoch, overflows=True)
    expected = {name: weight.detach() for name, weight in model.named_parameters()}
    scores: list[torch.Tensor] = []
    for rank in range(2):
        learned = torch.load(tmp_path / f"learned {rank}")
        scores.append(learned.pop("scores"))
        assert learned.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(learned[name], values, rtol=1e-9, atol=1e-9)
        assert (f"trainer {rank}", f"scale {scaler.get_scale():g}") in lines
        texts = {text for name, text in lines if name == f"trainer {rank}"}
        reason = "the import failed at trainer 0" if rank else f"{tmp_path / 'learned nothing'} has"
        assert any(text.startswith(f"not loaded: {reason}") for text in texts), texts
        refusal = "gradients were changed between backward() and step()"
        assert any(text.startswith(refusal) for text in texts)
    whole = torch.cat([model(*batch[:2]) for batch in torch_batches(batches)]).detach()
    assert sum(map(len, scores)) == len(whole)
    torch.testing.assert_close(torch.cat(scores).sort()[0], whole.sort()[0], rtol=1e-9, atol=1e-9)


DATA = clicks([20], [8] * 2)


class Rows(nn.Module):
    """Rows alone: without a dense part trainers can be threads of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.table(ids).sum((1, 2))


class FittedRows:
    """Rows of a job that a trainer has fitted.

    Attributes
    ----------
    model, batches : as fit returns them.
    """

    def __init__(
        self,
        job: InProcessJob,
        executor: Executor,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    ) -> None:
        model = Rows()
        self._optimizer = optimizer([*model.parameters()], lr=0.1)
        self.model, self.batches = fit_connected(
            model, job.data, optimizer=self._optimizer, connect=job.connect(executor)
        )

    def step(self, batch: Batch) -> None:
        """Train on a batch."""
        self.model(*batch[:2]).mean().backward()
        self._optimizer.step()

    def train(self) -> None:
        """Train on an epoch."""
        for batch in self.batches:
            self.step(batch)


def at_two_trainers(act: Callable[[Executor], None]) -> None:
    """Act at both at once."""
    with no_hang(), group(2) as executors:
        each(executors, act)


def test_the_others_get_the_error_of_a_loop() -> None:
    """Theirs was that a trainer had closed its batches, and could be told as the job's failure."""
    job = InProcessJob(clicks([20], [8] * 6))

    def train(executor: Executor) -> None:
        rows = FittedRows(job, executor)
        with rows.batches:
            for number, batch in enumerate(rows.batches):
                if executor.rank == 1 and number == 3:
                    raise ValueError("a loss is NaN")
                rows.step(batch)

    def act(executor: Executor) -> None:
        kind, text = (CommunicationError, "trainer 1 failed: ValueError: a loss is NaN")
        if executor.rank == 1:
            kind, text = ValueError, "^a loss is NaN"
        with pytest.raises(kind, match=text):
            train(executor)

    at_two_trainers(act)


def test_trainers_evaluate_no_loader_that_shuffles_at_each_of_them() -> None:
    """Each had its share of batches in an order of its own: some examples twice, others not."""
    job = InProcessJob(DATA)
    examples = TensorDataset(torch.zeros(8, 3), torch.zeros(8, 1, dtype=torch.int64))
    shuffled = LoaderData(DataLoader(examples, batch_size=4, shuffle=True), batch=4, columns=1)
    ordered = LoaderData(DataLoader(examples, batch_size=4), batch=4, columns=1)

    def act(executor: Executor) -> None:
        with FittedRows(job, executor).batches as batches:
            with pytest.raises(EmbeddingError, match="order is that of a RandomSampler without a"):
                batches.evaluate(shuffled)
            assert [len(ids) for _, ids in batches.evaluate(ordered)] == [2, 2]

    at_two_trainers(act)


def test_trainers_evaluate_each_example_of_a_loader_whose_generators_they_seed_otherwise() -> None:
    """By their ranks, as scripts do: some examples were evaluated twice, others not."""
    job = InProcessJob(DATA)
    features = torch.arange(8.0)[:, None].expand(8, 3)
    examples = TensorDataset(features, torch.zeros(8, 1, dtype=torch.int64))
    evaluated: list[float] = []

    def act(executor: Executor) -> None:
        generator = torch.Generator().manual_seed(executor.rank)
        loader = DataLoader(examples, batch_size=4, shuffle=True, generator=generator)
        with FittedRows(job, executor).batches as batches:
            for dense, _ in batches.evaluate(LoaderData(loader, batch=4, columns=1)):
                evaluated.extend(dense[:, 0].tolist())

    at_two_trainers(act)
    assert sorted(evaluated) == [*range(8)]


@pytest.mark.parametrize(
    ("is_committed", "place"),
    [(False, "the beginning of epoch 1"), (True, "the commit of epoch 0")],
)
def test_a_trainer_that_saves_alone_is_named(
    tmp_path: Path, is_committed: bool, place: str
) -> None:
    """As by `if rank == 0:`. It counted as the others' next epoch, which waited half an hour."""
    job = CommittingJob(tmp_path / "job", data=DATA) if is_committed else InProcessJob(DATA)

    def act(executor: Executor) -> None:
        rows = FittedRows(job, executor)
        rows.train()
        if executor.rank == 0:
            with pytest.raises(EmbeddingError, match=f"is at the export, trainer 1 at {place}: "):
                rows.batches.save(tmp_path / "rows")
        else:
            with pytest.raises(EmbeddingError, match=f"is at {place}, trainer 0 at the export: "):
                next(iter(rows.batches))

    at_two_trainers(act)


def test_a_trainer_that_evaluates_alone_is_named() -> None:
    """As by `if rank == 0:`. It had the metrics of its share of each batch, as if of all."""
    job = InProcessJob(DATA)

    def act(executor: Executor) -> None:
        rows = FittedRows(job, executor)
        rows.train()
        if executor.rank == 0:
            with pytest.raises(EmbeddingError, match="is at an evaluation, trainer 1 at the begin"):
                next(rows.batches.evaluate(DATA))
        else:
            with pytest.raises(EmbeddingError, match="of epoch 1, trainer 0 at an evaluation: all"):
                next(iter(rows.batches))

    at_two_trainers(act)


def test_a_trainer_that_left_after_an_import_ends_the_commit_of_the_others(tmp_path: Path) -> None:
    """The servers' commit of the loaded rows waited for it, up to the deadline of their calls."""
    job = CommittingJob(tmp_path / "job", data=DATA)

    def act(executor: Executor) -> None:
        rows = FittedRows(job, executor)
        rows.train()
        rows.batches.save(tmp_path / "rows")
        rows.batches.load(tmp_path / "rows")
        if executor.rank == 1:
            executor.close()
            return
        with pytest.raises(CommunicationError, match="rank 1"):
            rows.batches.close()

    at_two_trainers(act)


def test_all_trainers_go_on_from_the_steps_of_imported_rows(tmp_path: Path) -> None:
    """The first one alone reads the files; their optimizers weigh moments by the steps, too."""
    first, second = InProcessJob(DATA), CommittingJob(tmp_path / "job", data=DATA)

    def act(executor: Executor) -> None:
        for job in (first, second):
            rows = FittedRows(job, executor, torch.optim.SparseAdam)
            if job is second:
                rows.batches.load(tmp_path / "rows")
            rows.train()
            rows.batches.save(tmp_path / "rows", state=True)
            rows.batches.close()

    at_two_trainers(act)
    assert [position["steps"] for position in second.positions] == [4, 4]
