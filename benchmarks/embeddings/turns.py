"""Jobs of several ranks on a testbed that stay up, and work one after the other's turn."""

import itertools
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.jobs import WHERE
from headrace.launch.roles import Roles
from headrace.testbed import Testbed, rank_roles

_ANSWER_S = 300.0
_PORTS = itertools.count(29_600)
"""Of torch's stores: each job that is up needs one."""


class Job:
    """The ranks of a job; a message goes to all of them, and all answer."""

    def __init__(self, roles: Roles[int], ranks: int) -> None:
        self._roles = roles
        self._ranks = ranks

    def ask(self, message: Mapping[str, Any], timeout_s: float = _ANSWER_S) -> list[dict[str, Any]]:
        """Return every rank's answer.

        Raises
        ------
        CommunicationError : a rank failed, or did not answer in time.
        """
        for rank in range(self._ranks):
            self._roles.send(rank, dict(message))
        return self.answers(timeout_s)

    def answers(self, timeout_s: float = _ANSWER_S) -> list[dict[str, Any]]:
        """Return the next message of every rank; see `ask`."""
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self._ranks:
            answer = self._roles.expect("answers", timeout_s)
            if answer is None:
                raise RuntimeError("the ranks ended early")
            answers[answer[0]] = answer[1]
        return [answers[rank] for rank in sorted(answers)]


@contextmanager
def job(
    testbed: Testbed,
    module: str,
    ranks: int,
    task: Mapping[str, Any],
    environment: Mapping[str, str | None],
) -> Generator[Job]:
    """Yield a job of `module` on the first hosts, of which all ranks are ready.

    Each gets the task with its "rank", the number of "ranks" and the address to "listen" on, and
    answers when it is ready.
    """
    variables = {
        **WHERE,
        "MASTER_PORT": str(next(_PORTS)),
        "HEADRACE_MEASURE": "off",
        "HEADRACE_ADAPT": "off",
        **environment,
    }
    roles = rank_roles(testbed, [sys.executable, "-m", module], range(ranks), variables)
    with Roles(dict(enumerate(roles))) as started:
        for rank in range(ranks):
            address = testbed.hosts[rank].address
            started.send(rank, {**task, "rank": rank, "ranks": ranks, "listen": address})
        running = Job(started, ranks)
        running.answers()
        yield running
