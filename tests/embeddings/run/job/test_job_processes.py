"""Settings of the processes that serve a job."""

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.embeddings.run.job.job_processes import (
    JobHosts,
    JobOptions,
    JobProcesses,
    ProcessKey,
    RoleHost,
)


class AnsweringRoles:
    """Processes that answer with an address, in the order of their settings."""

    def __init__(self) -> None:
        self.settings: dict[ProcessKey, Mapping[str, Any]] = {}
        self.waits_s: list[float] = []
        self._answers: Iterator[ProcessKey] = iter(())

    def __enter__(self) -> None:
        pass

    def send(self, key: ProcessKey, message: Mapping[str, Any]) -> None:
        if "options" in message:
            self.settings[key] = message["options"]
            self._answers = iter([*self._answers, key])

    def next(self, what: str, timeout_s: float) -> tuple[ProcessKey, Mapping[str, Any]]:
        assert what
        self.waits_s.append(timeout_s)
        return next(self._answers), {"address": "127.0.0.1:1"}

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
