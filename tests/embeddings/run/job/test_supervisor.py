"""Jobs of trainers with servers, readers and a cacher: settings, ends, and first failures."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.embeddings import EmbeddingError, JobError
from headrace.embeddings.profile import Synchronisation
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.job import job_processes, supervisor
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions, RoleHost
from headrace.embeddings.run.job.supervisor import OnJobLine, run_embedding_job
from headrace.errors import CommunicationError
from headrace.launch.roles import Roles, Start, start_local
from tests.embeddings.run.job_peer import SCRIPT
from tests.embeddings.run.test_commits import description, mark_of
from tests.launch.test_roles import is_running
from tests.waiting import ENDLESS_S, HANG_S, no_hang, with_longer_deadlines

SAMPLED = pytest.mark.sampled(2)

OPTIONS = JobOptions(
    lookahead=7,
    prefetch=2,
    synchronisation=Synchronisation.LRPP,
    cache_bytes=4096,
    deadline_s=ENDLESS_S,
    silence_s=HANG_S,
)


@pytest.fixture(autouse=True)
def processes_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    module = (sys.executable, "-m", "tests.embeddings.run.job_peer")
    monkeypatch.setattr(job_processes, "_PROCESS", module)


class Job:
    """Runs of the tests' script; `lines` has what the trainers of the last one wrote."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT)
        self.lines: list[tuple[str, str]] = []

    def run(
        self,
        *purpose: str,
        script_reads: bool = False,
        restart: bool = False,
        on_line: OnJobLine = lambda _name, _line: None,
        hosts: JobHosts | None = None,
        options: JobOptions = OPTIONS,
        min_trainers: int | None = None,
        **environment: str | None,
    ) -> None:
        def take(name: str, line: str) -> None:
            self.lines.append((name, line))
            on_line(name, line)

        self.lines = []
        run_embedding_job(
            [sys.executable, str(self.script), *purpose],
            options,
            hosts or JobHosts.on_this_machine(trainers=2, servers=2, readers=1),
            on_line=take,
            script_reads=script_reads,
            restart=restart,
            min_trainers=min_trainers,
            environment={"PYTHONPATH": str(Path.cwd()), **environment},
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@SAMPLED
@pytest.mark.parametrize("script_reads", [False, True])
def test_trainers_are_started_with_what_serves_them(
    job: Job, script_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that read had the variables of this process: its process group waited for others."""
    monkeypatch.setenv("RANK", "7")
    job.run("describe", script_reads=script_reads, EXTRA="one")
    described: dict[str, dict[str, Any]] = {name: json.loads(line) for name, line in job.lines}
    assert set(described) == {"trainer 0", "trainer 1"}
    for rank, name in enumerate(["trainer 0", "trainer 1"]):
        variables = described[name]["variables"]
        assert 1024 <= int(variables.pop("MASTER_PORT")) < 1 << 16
        assert variables == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "EXTRA": "one",
        }
        assert described[name]["cache"] == 4096
        cacher, *served = described[name]["peers"]
        assert [peer["role"] for peer in served] == ["server 0", "server 1", "reader 0"]
        assert [peer["count"] for peer in served] == [2, 2, 1]
        options = {key: cacher["options"][key] for key in ("lookahead", "prefetch", "trainers")}
        assert options == {"lookahead": 7, "prefetch": 2, "trainers": 2}
        assert cacher["options"]["synchronisation"] == "lrpp"
        assert len({peer["pid"] for peer in [cacher, *served]}) == 4
        assert served[2]["argv"] == (
            [str(job.script), "describe"] if script_reads else served[0]["argv"]
        )
        assert served[2]["rank"] == (None if script_reads else "7")
        for peer in [described[name], cacher, *served]:
            assert not is_running(peer["pid"])
    assert described["trainer 0"]["peers"] == described["trainer 1"]["peers"]


@SAMPLED
def test_the_first_failure_of_a_trainer_ends_the_job(job: Job, tmp_path: Path) -> None:
    printed = tmp_path / "printed"

    def note_the_line(name: str, _line: str) -> None:
        if name == "trainer 0":  # trainer 1 fails when it is read
            printed.touch()

    with pytest.raises(JobError) as caught:
        job.run("fail", str(printed), on_line=note_the_line)
    assert str(caught.value) == (
        "trainer 1 ended with exit code 3; its last lines:\n"
        "first line of output\nlast line of errors"
    )
    assert caught.value.exit_code == 3
    assert ("trainer 0", "first line of output") in job.lines
    assert ("trainer 1", "last line of errors") in job.lines


@SAMPLED
def test_a_trainer_that_fails_by_the_loss_of_another_is_not_the_cause(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LEAVING_S", HANG_S)
    printed = tmp_path / "printed"

    def note_the_cause(_name: str, line: str) -> None:
        # Trainer 0 follows once the supervisor has the lines: pipes of two processes have no order.
        if line.endswith("the cause"):
            printed.touch()

    with pytest.raises(
        JobError, match=r"(?s)^trainer 1 ended with exit code 3; .*the cause$"
    ) as caught:
        job.run("fail and follow", str(printed), on_line=note_the_cause)
    assert caught.value.exit_code == 3


@SAMPLED
def test_an_error_says_which_trainers_had_ended_and_what_was_raised(
    job: Job, tmp_path: Path
) -> None:
    """The last lines were those of torch's own calls, and trainer 1 was not named."""
    ended = tmp_path / "ended"

    def note_the_end(roles: Any, key: Any, message: Any) -> None:
        if "ended" in message:
            assert message == {"ended": 1}
            ended.touch()
        send(roles, key, message)

    send = Roles.send
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Roles, "send", note_the_end)
        with pytest.raises(JobError) as caught:
            job.run("fail behind another", str(ended))
    first, *lines = str(caught.value).splitlines()
    assert first == (
        "trainer 0 ended with exit code 1, when trainer 1 had ended: all trainers need the same "
        "epochs; its last lines:"
    )
    assert lines[:2] == ["[rank0]: ValueError: the cause", "..."]
    assert lines[-1] == "[rank0]: call 39 of torch"


def test_a_trainer_that_a_signal_ended(job: Job) -> None:
    with pytest.raises(JobError, match="^trainer 1 was ended by signal 11") as caught:
        job.run("be killed")
    assert caught.value.exit_code == 128 + 11


def test_a_killed_server_is_the_cause_of_the_errors_of_trainers(job: Job) -> None:
    with pytest.raises(JobError, match="^server 0 was ended by signal 9") as caught:
        job.run("kill the server")
    assert caught.value.exit_code == 1


@SAMPLED
def test_a_stopped_cacher_is_named(job: Job) -> None:
    def stop_the_cacher(_name: str, line: str) -> None:
        if line.startswith("pids"):
            stopped.append(int(line.split()[2]))
            os.kill(stopped[-1], signal.SIGSTOP)

    def check(silence_s: float) -> None:
        stopped.clear()
        with pytest.raises(JobError, match=r"^cacher: it has been silent for \d+ s") as caught:
            job.run("wait", on_line=stop_the_cacher, options=replace(OPTIONS, silence_s=silence_s))
        assert caught.value.lost
        assert stopped, "it was silent before"

    stopped: list[int] = []
    with no_hang():
        with_longer_deadlines(check)


@SAMPLED
def test_a_killed_reader_starts_again_alone(job: Job) -> None:
    with no_hang():
        job.run("kill a reader", "2", restart=True)
    told = [line for name, line in job.lines if name == "supervisor"]
    assert (
        told
        == ["reader 0 was ended by signal 9. The other processes go on while it starts again."] * 2
    )
    assert job.lines[-1][1].startswith("a third process")


@SAMPLED
@pytest.mark.parametrize(("served", "restart", "restarts"), [(1, True, 1), (2, False, 0)])
def test_a_reader_that_serves_nothing_does_not_start_again(
    job: Job, served: int, restart: bool, restarts: int
) -> None:
    with no_hang(), pytest.raises(JobError, match="^reader 0 was ended by signal 9") as caught:
        job.run("kill a reader", str(served), restart=restart)
    assert caught.value.lost
    assert [name for name, _ in job.lines].count("supervisor") == restarts


@SAMPLED
@pytest.mark.parametrize("role", ["server 1", "cacher"])
def test_a_process_that_cannot_start_is_named(
    job: Job, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("REFUSES", role)
        with pytest.raises(CommunicationError, match=f"^starting the job failed: {role}: ValueErr"):
            job.run("describe")
    monkeypatch.setenv("DIES", role)
    with pytest.raises(
        CommunicationError,
        match=f"^starting the job failed: {role} ended with exit code 7.*\nline of its output",
    ):
        job.run("describe")
    assert not job.lines


def test_a_script_that_reads_has_to_serve(job: Job) -> None:
    with pytest.raises(CommunicationError, match=r"reader 0 ended before it served: .*\.fit$"):
        job.run("ends", script_reads=True)


class LostHost:
    """A host whose process is killed when it attends; the next one's start is another one.

    By then there is a commit, which the job begins from again.
    """

    def __init__(
        self, job: Job, folder: Path, next_start: Start, return_s: float = ENDLESS_S
    ) -> None:
        self.job = job
        self.options = replace(OPTIONS, folder=folder, return_s=return_s)
        self.commits = CommitFolder(folder)
        self.starts: list[Start] = [next_start, start_local]

    def run(self, min_trainers: int | None) -> None:
        lost = RoleHost(start=self._start)
        self.job.run(
            "attend",
            restart=True,
            on_line=self._lose,
            hosts=JobHosts(trainers=(RoleHost(), lost, RoleHost())),
            options=self.options,
            min_trainers=min_trainers,
        )

    def _start(self, argv: Sequence[str], **options: Any) -> Any:
        return self.starts.pop()(argv, **options)

    def _lose(self, name: str, line: str) -> None:
        if name == "trainer 1" and line.startswith("trainers 3"):
            mark = mark_of(description(self.job.script), self.commits.begin(), 0)
            self.commits.write(mark)
            os.kill(int(line.split()[2]), signal.SIGKILL)


def start_nothing(_argv: Sequence[str], **_options: Any) -> Any:
    raise OSError("no route to it")


def start_another(command: str, _argv: Sequence[str], **options: Any) -> Any:
    return start_local(["sh", "-c", command], **options)


GONE = [
    (start_nothing, ENDLESS_S, r"its host 127.0.0.1 starts no process: no route to it"),
    (partial(start_another, "sleep 600"), 0.2, "all others have been there for 0.2 s"),
    (partial(start_another, "exit 3"), ENDLESS_S, "trainer 1 ended with exit code 3"),
]


@SAMPLED
@pytest.mark.parametrize(
    ("next_start", "return_s", "reason"), GONE, ids=["refuses", "hangs", "fails"]
)
def test_a_job_goes_on_without_a_trainer_that_does_not_come_back(
    job: Job, tmp_path: Path, next_start: Start, return_s: float, reason: str
) -> None:
    with no_hang():
        LostHost(job, tmp_path / "state", next_start, return_s).run(min_trainers=2)
    told = [line for name, line in job.lines if name == "supervisor"]
    assert told == [
        "trainer 1 was ended by signal 9. The job begins from commit 0: epoch 1, batch 2.",
        f"trainer 1 did not come back: {reason}. The job begins from commit 0: epoch 1, batch 2, "
        "with as many trainers as are left: 2.",
    ]
    last = [line.split()[:2] for name, line in job.lines if name == "trainer 1"][-1]
    assert last == ["trainers", "2"]


@SAMPLED
def test_an_error_says_how_to_go_on_without_a_trainer(job: Job, tmp_path: Path) -> None:
    with no_hang(), pytest.raises(JobError) as caught:
        LostHost(job, tmp_path / "state", start_nothing).run(min_trainers=None)
    assert str(caught.value).splitlines() == [
        "trainer 1 did not come back: its host 127.0.0.1 starts no process: no route to it",
        "To go on with the others, run the job with --trainers 2 and the same --state; "
        "--min-trainers 2 does so by itself",
    ]


def test_fewer_trainers_need_commits_and_enough_trainers(job: Job, tmp_path: Path) -> None:
    with pytest.raises(EmbeddingError, match="--min-trainers needs --state"):
        job.run("wait", min_trainers=1)
    options = replace(OPTIONS, folder=tmp_path / "state")
    with pytest.raises(EmbeddingError, match=r"is 3, needs at most the job's 2 trainers"):
        job.run("wait", min_trainers=3, options=options)


def test_a_job_needs_every_kind_of_process() -> None:
    with pytest.raises(EmbeddingError, match="a job has no servers, needs 1 or more"):
        JobHosts.on_this_machine(servers=0)


def test_a_first_trainer_elsewhere_needs_a_port_for_the_rendezvous(job: Job) -> None:
    """The error was of an address that cannot be assigned, and named neither."""
    hosts = JobHosts(trainers=(RoleHost(address="192.0.2.1"),))  # of no host
    message = r"^trainer 0 is on 192\.0\.2\.1, where .*, as JobHosts\(rendezvous=29500\)"
    with pytest.raises(EmbeddingError, match=message):
        job.run("wait", hosts=hosts)
