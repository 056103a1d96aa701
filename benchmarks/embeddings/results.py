"""Results of jobs beside those of one process: rows, dense part and losses."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.embeddings.cases import BATCH, OPTIMIZERS, Case, batches_of, movie_ratings
from benchmarks.embeddings.reference import Recommender, train_alone
from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from headrace.embeddings import Synchronisation
from headrace.embeddings.data.generate import KAGGLE_ROWS, ClickSource, Skew
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions
from headrace.embeddings.run.job.supervisor import run_embedding_job

EPOCH_BATCHES = 50
"""Of 96 examples, and a last one of 7. Two epochs are some 100 steps; in a quick run 50."""

HELD_OUT = 500
_PREFETCH = 3
_RELATIVE = {"float64": 1e-9, "float32": None}
_LOSS = {"float64": 1e-9, "float32": 1e-4}


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"wrong-results": "<=0"}


def cases(*, quick: bool) -> Sequence[Case]:
    """Return the jobs."""
    targeted = Synchronisation.TARGETED.value
    some = [
        Case(trainers=1, synchronisation=targeted, lookahead=7, optimizer="Adagrad"),
        Case(trainers=2, synchronisation=targeted, lookahead=5, optimizer="SparseAdam"),
        Case(trainers=2, synchronisation="lrpp", lookahead=20, optimizer="SGD", dtype="float32"),
        Case(
            trainers=2,
            synchronisation=targeted,
            lookahead=10,
            optimizer="RowWiseAdagrad",
            model="Wide & Deep",
            data="MovieLens",
        ),
    ]
    if quick:
        return some[:2]
    alone = [
        Case(trainers=1, synchronisation=targeted, lookahead=lookahead, optimizer=name, dtype=dtype)
        for lookahead, name in zip((1, 4, 60, 20), OPTIMIZERS, strict=True)
        for dtype in ("float32", "float64")
    ]
    several = [
        Case(
            trainers=2 + (number + place) % 3,
            synchronisation=design,
            lookahead=(1, 3, 60, 12)[(number + place) % 4],
            optimizer=name,
            dtype=("float64", "float32")[place % 2],
        )
        for number, design in enumerate((targeted, "lrpp", "replicated", "distinct"))
        for place, name in enumerate(OPTIMIZERS)
    ]
    return [*some, *alone, *several]


def measure(report: Report, *, quick: bool) -> None:
    """Run the jobs, and count those whose results are wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases(quick=quick)):
            place = Path(folder, str(number))
            place.mkdir()
            difference = _difference(case, place, EPOCH_BATCHES // (2 if quick else 1))
            wrong += not difference.is_right(case)
            report.row(
                "results beside those of one process, of two epochs",
                data=case.data,
                model=case.model,
                trainers=case.trainers,
                design=case.synchronisation,
                lookahead=case.lookahead,
                optimizer=case.optimizer,
                dtype=case.dtype,
                rows=difference.rows,
                dense=difference.dense,
                loss=difference.loss,
                evaluation=difference.evaluation,
                auc=difference.auc,
                right=difference.is_right(case),
            )
    report.bar("wrong-results", wrong)
    report.note(
        "results: relative differences, the largest; with one trainer rows, dense part and losses "
        "are to be equal bit for bit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Largest relative differences between a job and one process.

    Attributes
    ----------
    rows, dense : of numbers, over the largest of their table or parameter.
    loss, evaluation : of a batch's loss, in training and in the evaluation between the epochs.
    auc : of the last batch in one process.
    """

    rows: float
    dense: float
    loss: float
    evaluation: float
    auc: float

    def is_right(self, case: Case) -> bool:
        """Return whether the differences are within the case's bounds."""
        if case.trainers == 1:
            return max(self.rows, self.dense, self.loss, self.evaluation) == 0
        bound = _RELATIVE[case.dtype]
        return (bound is None or max(self.rows, self.dense) <= bound) and max(
            self.loss, self.evaluation
        ) <= _LOSS[case.dtype]


def _difference(case: Case, folder: Path, batches: int) -> Difference:
    train, held_out = folder / "train", folder / "held-out"
    _write(case, train, held_out, batches)
    command = [sys.executable, "-m", "benchmarks.embeddings.job_of_results"]
    run_embedding_job(
        [*command, json.dumps(case.to_fields()), str(train), str(held_out), str(folder)],
        JobOptions(
            lookahead=case.lookahead,
            prefetch=min(_PREFETCH, case.lookahead),
            synchronisation=Synchronisation(case.synchronisation),
            deadline_s=120.0,
        ),
        JobHosts.on_this_machine(trainers=case.trainers, servers=2, readers=2),
        on_line=lambda _name, _line: None,
        environment={**WHERE, "OMP_NUM_THREADS": "1"},
    )
    return _compared(case, folder, train, held_out)


def _write(case: Case, train: Path, held_out: Path, batches: int) -> None:
    if case.data == "MovieLens":
        movie_ratings(train)
        movie_ratings(held_out)
        return
    source = ClickSource(skew=Skew(kind="zipf", parameter=1.05), rows=KAGGLE_ROWS)
    for path, examples in ((train, batches * BATCH + 7), (held_out, HELD_OUT)):
        path.write_bytes(b"".join(source.lines(examples)))


def _compared(case: Case, folder: Path, train: Path, held_out: Path) -> Difference:
    """Train in one process, and return how far the job's results are from that."""
    shape = case.shape
    tables = [shape.table(number) for number in range(len(shape.counts))]
    evaluated: list[float] = []
    batches = list(batches_of(case.data_in(train)))

    def evaluate(model: Recommender) -> None:
        with torch.no_grad():
            for batch in batches_of(case.data_in(held_out)):
                assert batch.labels is not None
                ids = [torch.from_numpy(column) for column in batch.ids]
                logits = model(torch.from_numpy(batch.dense).to(shape.dtype), ids)
                labels = torch.from_numpy(batch.labels).to(shape.dtype)
                loss = functional.binary_cross_entropy_with_logits(logits, labels)
                evaluated.append(float(loss))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = train_alone(
            shape, tables, [batches, batches], OPTIMIZERS[case.optimizer], evaluate
        )
    finally:
        torch.set_num_threads(threads)
    written = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(case.trainers)]
    trained = torch.load(folder / "trained.pt")
    return Difference(
        rows=_largest(trained["rows"], expected.tables),
        dense=_largest(
            [trained["dense"][name] for name in expected.dense], list(expected.dense.values())
        ),
        loss=_of_losses([part["losses"] for part in written], expected.losses),
        evaluation=_of_losses([part["evaluated"] for part in written], evaluated),
        auc=expected.auc[-1],
    )


def _largest(trained: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of numbers, over the largest number of their tensor."""
    return max(
        float((first - second).abs().max() / second.abs().max())
        for first, second in zip(trained, expected, strict=True)
    )


def _of_losses(shares: Sequence[Sequence[Sequence[float]]], expected: Sequence[float]) -> float:
    """Return the largest relative difference of losses, given those of shares and their sizes."""
    if any(len(losses) != len(expected) for losses in shares):
        return float("inf")
    parts = np.array(shares)  # [trainers, batches, (loss, examples)]
    losses, sizes = np.nan_to_num(parts[..., 0]), parts[..., 1]
    means = (losses * sizes).sum(axis=0) / sizes.sum(axis=0)
    return float(np.max(np.abs(means / np.array(expected) - 1)))
