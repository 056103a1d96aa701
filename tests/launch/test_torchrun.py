"""The store of ranks that torchrun started."""

import socket
from contextlib import closing

import pytest

from headrace.errors import CommunicationError
from headrace.launch.torchrun import torchrun_store


def test_a_port_that_is_in_use_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's error was a traceback of its own calls."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0"}
        for variable, text in (variables | {"WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(variable, text)
        with pytest.raises(CommunicationError) as caught:
            torchrun_store()
    assert str(caught.value).startswith(f"rank 0: port {port} of this host, MASTER_PORT of torch's")
    assert "start the job with another port (torchrun's --master-port, or" in str(caught.value)
    assert caught.value.__suppress_context__
