"""A script as a reader: its `fit` serves the batches of its own data in place of training."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headrace.embeddings.data.files import ExampleData
from headrace.embeddings.data.loader import LoaderData
from headrace.embeddings.data.parts import ReaderPart
from headrace.embeddings.run.cacher.cacher import IdBatch
from headrace.embeddings.run.process import RoleSettings, serve_role
from headrace.embeddings.run.readers.reader_server import FileBatches, ReaderServer
from headrace.launch.worker import Receive, Send, run_worker


@dataclass(frozen=True, slots=True)
class ScriptBatches:
    """Batches of a script's own data, by the columns that tables look up."""

    data: ExampleData
    columns: Sequence[Sequence[int]]

    def batches(self, epoch: int, part: ReaderPart) -> Iterator[IdBatch]:
        """Yield the batches of a part of an epoch; a loader's order may differ by epoch.

        Raises
        ------
        EmbeddingError : the data are wrong; other processes may have a loader's batches in another
            order, and some of them are theirs.
        """
        if isinstance(self.data, LoaderData):
            alone = part.readers == 1 and part.first == 0
            self.data.begin_epoch(epoch, alone=alone)
        yield from FileBatches(self.data, self.columns).batches(epoch, part)


def serve_batches(data: ExampleData) -> NoReturn:
    """Serve batches as the job's supervisor says, until it ends this process or is gone."""

    def serve(settings: RoleSettings, send: Send) -> ReaderServer:
        return ReaderServer(settings, lambda _fields, columns: ScriptBatches(data, columns), send)

    def work(receive: Receive, send: Send) -> None:
        serve_role(receive, send, serve)

    run_worker(work, beside_prints=True)
    sys.exit(0)
