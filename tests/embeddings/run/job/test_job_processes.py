"""Settings of the processes that serve a job."""

import queue
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest

from headrace.embeddings.run.job.job_processes import (
    JobHosts,
    JobOptions,
    JobProcesses,
    ProcessKey,
    RoleHost,
)
from headrace.errors import CommunicationError


class AnsweringRoles:
    """Processes that answer with an address, in the order of their settings.

    Parameters
    ----------
    silent : those that do not.
    """

    def __init__(self, silent: Collection[ProcessKey] = ()) -> None:
        self._silent = silent
        self.settings: dict[ProcessKey, Mapping[str, Any]] = {}
        self.waits_s: list[float] = []
        self._answers: Iterator[ProcessKey] = iter(())

    def __enter__(self) -> None:
        pass

    def send(self, key: ProcessKey, message: Mapping[str, Any]) -> None:
        if "options" in message:
            self.settings[key] = message["options"]
            self._answers = iter([*self._answers, key])

    def receive(self, timeout_s: float) -> tuple[ProcessKey, Mapping[str, Any]]:
        self.waits_s.append(timeout_s)
        for key in self._answers:
            if key not in self._silent:
                return key, {"address": "127.0.0.1:1"}
        raise queue.Empty

    def end(self) -> None:
        pass


def test_servers_know_with_how_many_they_share_the_memory_of_their_host() -> None:
    """Each took it for its own: two ended with the kernel where a call was to fail."""
    hosts = (RoleHost(), RoleHost(address="127.0.0.2"), RoleHost())
    processes = JobProcesses(JobOptions(), JobHosts(servers=hosts))
    roles = AnsweringRoles()
    processes.roles = roles  # pyright: ignore[reportAttributeAccessIssue]
    with processes:
        servers = [roles.settings["server", number] for number in range(3)]
    assert [options["of_host"] for options in servers] == [2, 1, 2]


def test_a_script_that_reads_may_load_its_data_before_it_serves() -> None:
    """It had five minutes for that, of which trainers have half an hour."""
    longest_s: list[float] = []
    for read_with in (None, ["train.py"]):
        processes = JobProcesses(JobOptions(deadline_s=1800.0), JobHosts(), read_with=read_with)
        roles = AnsweringRoles()
        processes.roles = roles  # pyright: ignore[reportAttributeAccessIssue]
        with processes:
            longest_s.append(max(roles.waits_s))
    own_s, of_script_s = longest_s
    assert 0 < own_s <= 300 < of_script_s <= 1800


def test_processes_that_do_not_come_to_serve_are_named() -> None:
    """So were those that had, and the cacher, which had not been asked."""
    processes = JobProcesses(JobOptions(), JobHosts(readers=(RoleHost(), RoleHost())))
    roles = AnsweringRoles(silent=[("reader", 1)])
    processes.roles = roles  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CommunicationError, match="is stuck: no address of reader 1 within 300 s$"):
        processes.__enter__()
