"""The process of a role: settings in, an address out, until its parent is gone."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace.embeddings.run.process import RoleSettings, Serve, serve_role
from headrace.errors import CommunicationError
from headrace.launch.worker import Send

SETTINGS = RoleSettings(
    kind="server", number=1, count=2, host="127.0.0.1", deadline_s=5.0, secret="s", options={"a": 1}
)


class Server:
    address = "127.0.0.1:4000"

    def __init__(self) -> None:
        self.open = True

    def status(self) -> dict[str, Any]:
        return {"open": self.open}

    def close(self) -> None:
        self.open = False


def messages_then_end(*messages: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from messages
    raise CommunicationError("the process that started this one is gone")


def test_it_serves_by_its_settings_until_the_parent_is_gone() -> None:
    messages = messages_then_end(SETTINGS.to_message(), {"status": True})
    served = Server()
    started: list[RoleSettings] = []
    sent: list[dict[str, Any]] = []

    def serve(settings: RoleSettings, send: Send) -> Server:
        del send
        started.append(settings)
        return served

    def send(**message: Any) -> None:
        assert served.open
        sent.append(message)

    serve_role(lambda: next(messages), send, serve)
    assert started == [SETTINGS]
    assert sent == [{"address": "127.0.0.1:4000"}, {"status": {"open": True}}]
    assert not served.open


def test_ends_of_trainers_reach_processes_that_follow_them() -> None:
    class Cacher(Server):
        def trainer_ended(self, trainer: int) -> None:
            ended.append(trainer)

    ended: list[int] = []
    for served in (Server(), Cacher()):
        messages = messages_then_end(SETTINGS.to_message(), {"ended": 3})
        serve = cast("Serve", lambda *_, served=served: served)
        serve_role(lambda messages=messages: next(messages), lambda **_: None, serve)
    assert ended == [3]


def test_its_end_before_the_settings_is_an_error() -> None:
    messages = messages_then_end()
    with pytest.raises(CommunicationError, match="gone"):
        serve_role(lambda: next(messages), lambda **_: None)


def test_roles_have_the_names_of_errors() -> None:
    assert SETTINGS.role == "server 1"
    fields = SETTINGS.to_message() | {"kind": "cacher", "number": 0, "count": 1}
    assert RoleSettings.from_message(fields).role == "cacher"
