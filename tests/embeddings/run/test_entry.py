"""The entry of a script: which data another process of it would read."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headrace.embeddings import EmbeddingError, LoaderData, fit
from headrace.embeddings.run import entry
from headrace.embeddings.run.description import JobDescription
from headrace.errors import CommunicationError

Loader = Sequence[tuple[np.ndarray, ...]]


class Items(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)

    def forward(self, _dense: Tensor, ids: Tensor) -> Tensor:
        return self.table(ids)


def loader() -> Loader:
    return [(np.zeros((2, 1), np.float32), np.ones((2, 1), np.int64), np.zeros(2))]


def fit_model(batches: Loader, batch: int = 2) -> None:
    model = Items()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(model, LoaderData(batches, batch=batch, columns=1), optimizer=optimizer)


def test_another_loader_than_that_of_the_first_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of another fold: its reader ran the script to the first fit, and served that data."""

    def join(_description: JobDescription) -> NoReturn:
        raise CommunicationError("joins")

    monkeypatch.setattr(entry, "join_job", join)
    monkeypatch.setattr(entry, "_first_data", [])
    first = loader()
    for _ in range(2):
        with pytest.raises(CommunicationError, match="joins"):
            fit_model(first)
    for other, batch in ((loader(), 2), (first, 4)):
        with pytest.raises(EmbeddingError, match="reads a loader's data runs the script up to its"):
            fit_model(other, batch)
    monkeypatch.setenv("HEADRACE_EMBEDDINGS_CACHER", "127.0.0.1:1")  # of a job with its readers
    with pytest.raises(CommunicationError, match="joins"):
        fit_model(loader())
