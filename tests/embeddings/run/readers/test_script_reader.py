"""A script as a reader: its messages beside what it prints."""

import json
import sys
from subprocess import PIPE
from typing import Any

from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.launch.roles import start_local
from headrace.launch.worker import MARK
from tests.embeddings.run.jobs import SECRET, settings
from tests.waiting import HANG_S

SCRIPT = """
import numpy as np
from headrace.embeddings import LoaderData
from headrace.embeddings.run.readers.script_reader import serve_batches

class Batches:
    def __iter__(self):
        for _ in range(3):
            print(".", end="")
            yield np.zeros((2, 1), np.float32), np.ones((2, 1), np.int64)

print("loading", end=" ")
serve_batches(LoaderData(Batches(), batch=2, columns=1))
"""


def test_messages_are_lines_whatever_the_script_prints() -> None:
    """A message behind a text without an end of line was lost: a job waited for the address."""
    head = {"data": {}, "columns": [[0]], "reader": 0, "readers": 1, "epoch": 0, "batch": 0}
    with start_local([sys.executable, "-c", SCRIPT], text=True, stdin=PIPE, stdout=PIPE) as reader:
        assert reader.stdout is not None
        lines = reader.stdout

        def message() -> dict[str, Any]:
            while not (line := next(lines)).startswith(MARK):
                pass
            return json.loads(line.removeprefix(MARK))

        def tell(told: dict[str, Any]) -> None:
            assert reader.stdin is not None
            print(json.dumps(told), file=reader.stdin, flush=True)

        tell(settings("reader").to_message())
        with RpcClient(
            message()["address"], peer_role="reader 0", role="cacher", secret=SECRET,
            deadline_s=HANG_S,
        ) as client:  # fmt: skip
            client.call("next", RpcMessage(head=head))
        assert message() == {"serves": True}
        tell({"status": True})
        assert message()["status"]["times"]["batches"] > 0
        reader.kill()
