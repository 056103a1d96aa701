"""A script as a reader: its `fit` serves the batches of its own data in place of training."""

import sys
from typing import NoReturn

from headrace.embeddings.data.files import ExampleData
from headrace.embeddings.run.process import RoleSettings, serve_role
from headrace.embeddings.run.reader_server import FileBatches, ReaderServer
from headrace.launch.worker import Receive, Send, run_worker


def serve_batches(data: ExampleData) -> NoReturn:
    """Serve batches as the job's supervisor says, until it ends this process or is gone."""

    def serve(settings: RoleSettings) -> ReaderServer:
        return ReaderServer(settings, lambda _fields, columns: FileBatches(data, columns))

    def work(receive: Receive, send: Send) -> None:
        serve_role(receive, send, serve)

    run_worker(work)
    sys.exit(0)
