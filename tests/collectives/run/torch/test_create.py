"""The log level of a process, and the closing of its groups at exit."""

import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from headrace.collectives.run.torch import create
from headrace.errors import CommunicationError
from headrace.units import LONGEST_S
from tests.waiting import JOB_S

PROGRAM = """
import logging, sys
if sys.argv[1] == "configured":
    logging.basicConfig(format="app %(message)s", level=logging.WARNING)
from headrace.collectives.run.torch.create import show_log
show_log(sys.argv[2], 3)
show_log(sys.argv[2], 3)
log = logging.getLogger("headrace.collectives.run.torch.create")
log.info("a group")
log.warning("a problem")
"""


@pytest.mark.sampled(3, of="imports of torch")
@pytest.mark.parametrize(
    ("application", "level", "lines"),
    [
        ("silent", "info", ["headrace[3] INFO: a group", "headrace[3] WARNING: a problem"]),
        ("silent", "warning", ["headrace[3] WARNING: a problem"]),
        ("configured", "info", ["app a problem"]),
    ],
)
def test_which_setting_decides_the_level(application: str, level: str, lines: list[str]) -> None:
    """HEADRACE_LOG_LEVEL counts where the application has no logging of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, application, level],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    )
    assert done.stderr.splitlines() == lines
    assert done.stdout == ""


class _Left:
    """Group that a script left open."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.closed = fails, False

    def shutdown(self, drain_s: float) -> None:
        assert drain_s > 0
        self.closed = True
        if self.fails:
            raise KeyboardInterrupt


def test_a_failure_to_close_a_group_at_exit_leaves_no_other_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second interrupt of a job came while the first of two groups was being closed."""
    groups = [_Left(fails) for fails in (True, False, True, False)]
    monkeypatch.setattr(create, "_live", groups)
    forgotten: list[bool] = []
    monkeypatch.setattr(create.completion_threads, "forget", lambda: forgotten.append(True))
    with pytest.raises(KeyboardInterrupt):
        create.close_all()
    assert [group.closed for group in groups] == [True] * 4
    assert forgotten == [True]


def test_a_failure_behind_connecting_closes_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other ranks waited in their first call, as where a warning on the book is an error."""
    closed: list[bool] = []
    executor = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(create, "_join", lambda *_: (SimpleNamespace(executor=executor), "cpu"))
    monkeypatch.setattr(create, "show_log", lambda *_: None)

    def refuse(*_: object) -> None:
        raise UserWarning("the plan book does not fit")

    monkeypatch.setattr(create, "_job_book", refuse)
    options = SimpleNamespace(
        group_rank=1, group_size=2, global_ranks_in_group=[], timeout=timedelta(seconds=1)
    )
    with pytest.raises(UserWarning):
        create.create(options)
    assert closed == [True]


@pytest.mark.parametrize(
    ("timeout", "limit", "seconds"),
    [
        (timedelta(hours=3), "", 10800.0),
        (timedelta(hours=3), "600", 600.0),
        (timedelta(seconds=5), "600", 5.0),
        (timedelta.max, "", LONGEST_S),
    ],
)
def test_a_timeout_is_the_one_that_torch_gives_unless_the_limit_is_set(
    timeout: timedelta, limit: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of hours, for a rank that prepares the data, ended after half an hour."""
    monkeypatch.setenv("HEADRACE_DEADLINE_S", limit)
    monkeypatch.setattr(create, "show_log", lambda *_: None)
    joined: list[float] = []

    def join(_options: object, _settings: object, _book: object, timeout_s: float) -> None:
        joined.append(timeout_s)
        raise CommunicationError("enough")

    monkeypatch.setattr(create, "_join", join)
    options = SimpleNamespace(group_rank=1, group_size=2, global_ranks_in_group=[], timeout=timeout)
    with pytest.raises(CommunicationError):
        create.create(options)
    assert joined == [seconds]
