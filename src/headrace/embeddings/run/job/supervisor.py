"""A job of trainers that run a script, and of the processes that serve them."""

import queue
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial

from headrace.embeddings.errors import EmbeddingError, JobError
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.job.folder_lock import locked_folder
from headrace.embeddings.run.job.job_processes import (
    JobHosts,
    JobOptions,
    JobProcesses,
    ProcessKey,
    key_of,
    name_of,
)
from headrace.embeddings.run.job.job_starts import LAST_LINES, JobStarts, gone_error
from headrace.embeddings.run.job.job_times import SERVING, JobTimes, OnSample, StatusRounds
from headrace.embeddings.run.job.reader_restarts import ReaderRestarts, restarted_line
from headrace.embeddings.run.job.trainer_returns import TrainerReturns
from headrace.embeddings.run.rpc.pulses import Silences, silence_of
from headrace.errors import CommunicationError
from headrace.launch.ports import free_port
from headrace.launch.roles import LINES, Role
from headrace.settings import child_environment

OnJobLine = Callable[[str, str], None]
"""Called with the name of a process, as "trainer 1", and a line that it wrote."""

_CACHER: ProcessKey = ("cacher", 0)
_AFTERMATH_S = 2.0
"""After the first failure, for the ends of other processes: one of them may be its cause."""
_OF_TRAINERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that trainers have. This process can have some: a script that reads gets none."""
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception): .")
"""Line that ends a traceback; torch writes calls of its own behind it."""
_LEAVING_S = 8.0
"""For the end of a trainer that has printed a traceback."""
_LATE_S = 0.3
"""For the end of a process that serves, when all trainers have ended by it."""


def run_embedding_job(
    script: Sequence[str],
    options: JobOptions,
    hosts: JobHosts | Callable[[], JobHosts],
    *,
    on_line: OnJobLine,
    script_reads: bool = False,
    environment: Mapping[str, str | None] | None = None,
    restart: bool = False,
    min_trainers: int | None = None,
    on_sample: OnSample | None = None,
) -> None:
    """Run a job until all trainers have ended; the first process that fails ends all.

    A job that commits can start again where a process is lost: from its last commit, before the
    first one anew. Another loss before a new commit ends it. A lost reader starts again alone.
    Trainers have the environment that torchrun sets, and what `headrace.embeddings.fit` needs.

    Parameters
    ----------
    script : command of every trainer.
    hosts : of the processes; a function is called for those of every start.
    on_line : receives the output of trainers.
    script_reads : whether readers run the script, too: its `fit` serves the batches of its data.
    environment : changes to the environment of trainers and of readers that run the script.
    on_sample : called about every second with the times of the job's processes so far.
    restart : whether to start again where a process was lost; without a folder in the options, a
        reader alone.
    min_trainers : fewest that the job goes on with, from its last commit, where one that was lost
        does not come back, or is lost again before another commit; None: that is an error.

    Raises
    ------
    EmbeddingError : the folder cannot be made, or another job on this host has it; `min_trainers`
        are more than there are, or there is no folder; the hosts lack a port for the rendezvous.
    JobError : a process failed; names it, with its last lines.
    CommunicationError : a process did not start.
    """
    folder = None if options.folder is None else CommitFolder(options.folder)
    starts = JobStarts(folder, hosts, restart=restart, min_trainers=min_trainers)
    times = JobTimes()
    with nullcontext() if folder is None else locked_folder(folder.path):
        while True:
            places = starts.begin(partial(on_line, "supervisor"))
            processes = JobProcesses(
                options,
                places,
                read_with=script if script_reads else None,
                environment={**dict.fromkeys(_OF_TRAINERS), **(environment or {})},
                readers_restart=restart,
            )
            try:
                with processes:
                    _start_trainers(processes, script, environment)
                    rounds = _status_rounds(processes, times, on_sample)
                    _Watch(processes, on_line, lost=starts.lost, rounds=rounds).until_end()
            except JobError as error:
                starts.lose(error)
            else:
                return


def _status_rounds(
    processes: JobProcesses, times: JobTimes, on_sample: OnSample | None
) -> StatusRounds | None:
    if on_sample is None:
        return None
    times.begin()
    keys = [key for kind in SERVING for key in processes.keys_of(kind)]
    return StatusRounds(keys=keys, times=times, on_sample=on_sample)


def _start_trainers(
    processes: JobProcesses,
    script: Sequence[str],
    environment: Mapping[str, str | None] | None,
) -> None:
    hosts = processes.hosts
    rendezvous = _rendezvous(hosts)
    for rank, host in enumerate(hosts.trainers):
        role = Role(
            name=name_of(("trainer", rank)),
            argv=script,
            start=host.start,
            env={
                **_trainer_environment(processes, rank, rendezvous),
                **(environment or {}),
            },
            streams=LINES,
        )
        try:
            processes.roles.add(("trainer", rank), role)
        except (OSError, CommunicationError) as error:
            raise gone_error(
                [("trainer", rank)], hosts, f"its host {host.address} starts no process: {error}"
            ) from error


def _rendezvous(hosts: JobHosts) -> int:
    """Return the port for torch's rendezvous.

    Raises
    ------
    EmbeddingError : the first trainer's host is another machine, and its port is not named.
    """
    address = hosts.trainers[0].address
    try:
        return hosts.rendezvous or free_port(address)
    except OSError as error:
        raise EmbeddingError(
            f"trainer 0 is on {address}, where this machine finds no free port: name one for "
            f"torch's rendezvous, as JobHosts(rendezvous=29500) ({error.strerror})"
        ) from error


def _trainer_environment(processes: JobProcesses, rank: int, rendezvous: int) -> dict[str, str]:
    """Return the environment of a trainer: torchrun's variables and headrace's.

    Trainers of one host share its processors: like torchrun, one thread each by default.
    """
    addresses = [host.address for host in processes.hosts.trainers]
    address = addresses[rank]
    local = addresses.count(address)
    variables = {
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "LOCAL_RANK": str(addresses[:rank].count(address)),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(list(dict.fromkeys(addresses)).index(address)),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(rendezvous),
        "HEADRACE_EMBEDDINGS_ROLE": "trainer",
        "HEADRACE_EMBEDDINGS_CACHER": processes.address,
        "HEADRACE_EMBEDDINGS_SECRET": processes.secret,
    }
    if processes.options.cache_bytes is not None:
        variables["HEADRACE_EMBEDDINGS_CACHE_BYTES"] = str(processes.options.cache_bytes)
    if local > 1 and "OMP_NUM_THREADS" not in child_environment():
        variables["OMP_NUM_THREADS"] = "1"
    return variables


class _Watch:
    """Waits for the end of a job's trainers, or a failure.

    The cacher tells of other processes that fall silent; it is asked for answers itself.

    Parameters
    ----------
    lost : processes that were lost in the start before.
    rounds : in which the processes are asked for their times, if any.
    """

    def __init__(
        self,
        processes: JobProcesses,
        on_line: OnJobLine,
        *,
        lost: Collection[ProcessKey],
        rounds: StatusRounds | None,
    ) -> None:
        trainers = len(processes.hosts.trainers)
        self._roles = processes.roles
        self._hosts = processes.hosts
        self._running = {("trainer", rank) for rank in range(trainers)}
        self._silence_s = processes.options.silence_s
        self._silences: Silences[ProcessKey] = Silences(self._silence_s)
        self._on_line = on_line
        self._restarts = ReaderRestarts(processes)
        self._returns = TrainerReturns(lost, trainers, processes.options.return_s)
        self._rounds = rounds
        self._errors: dict[ProcessKey, str] = {}
        self._ends: dict[ProcessKey, int] = {}
        self._tracebacks: dict[ProcessKey, float] = {}
        self._exceptions: dict[ProcessKey, str] = {}

    def until_end(self) -> None:
        asked = time.monotonic()
        self._silences.refresh(_CACHER)
        while self._running:
            due = asked + self._silences.interval_s
            wait_s = min(max(0.0, due - time.monotonic()), self._returns.left_s)
            if self._rounds is not None:
                wait_s = min(wait_s, self._rounds.ask_when_due(self._roles))
            try:
                self._take(wait_s)
            except queue.Empty:  # else an answer may be among the lines that are not taken yet
                if (now := time.monotonic()) >= due:
                    self._ask(now - asked)
                    asked = now
            if self._failed():
                if not any(code < 0 and code != -signal.SIGABRT for code in self._ends.values()):
                    self._take_aftermath()
                raise self._failure()
            if not self._returns.left_s:
                raise gone_error(sorted(self._returns.absent), self._hosts, self._returns.reason)
        if self._rounds is not None:
            self._rounds.last_round(self._roles, self._take_within)

    def _take_within(self, timeout_s: float) -> None:
        with suppress(queue.Empty):
            self._take(timeout_s)

    def _ask(self, elapsed_s: float) -> None:
        """Ask the cacher for a sign of life.

        Raises
        ------
        JobError : it has been silent for too long.
        """
        if self._silences.elapse(elapsed_s):
            raise self._silence([_CACHER], [])
        self._roles.send(_CACHER, {"ask": True})

    def _silence(self, silent: Sequence[ProcessKey], alive: Sequence[ProcessKey]) -> JobError:
        """End processes that fell silent; return the error that names them."""
        self._roles.end(silent, grace_s=0.0)  # by SIGKILL, which ends a stopped one, too
        reason = silence_of(self._silence_s)
        cacher = self._hosts.cacher.address
        elsewhere = {self._hosts.of(key).address for key in silent} - {cacher}
        names = ", ".join(map(name_of, silent))
        if len(elsewhere) > 1 and all(self._hosts.of(key).address == cacher for key in alive):
            text = f"cacher: its host {cacher} is cut off from {names}"
            return JobError(text, 1, lost=True, processes=[name_of(_CACHER)])
        return JobError(f"{names}: {reason}", 1, lost=True, processes=[*map(name_of, silent)])

    def _take_aftermath(self) -> None:
        began = time.monotonic()
        with suppress(queue.Empty):
            while True:
                # A trainer takes leave of others after its traceback.
                leaving = any(
                    self._tracebacks.get(key, 0.0) > began - _LEAVING_S for key in self._running
                )
                until = began + (_LEAVING_S if leaving else _AFTERMATH_S)
                left_s = max(0.0, until - time.monotonic())
                self._take(left_s if self._running else min(left_s, _LATE_S))

    def _failed(self) -> bool:
        return bool(self._errors) or any(
            code or key[0] != "trainer" for key, code in self._ends.items()
        )

    def _take(self, timeout_s: float) -> None:
        """Take a line of a process, or its end."""
        key, line = self._roles.receive_line(timeout_s)
        if line is None:
            code = self._roles.exit_code(key) or 0
            if not self._restarted([key], f"{name_of(key)}{_end_of(code)}"):
                self._ends[key] = code
                self._running.discard(key)
                if key[0] == "trainer" and code == 0 and self._running:
                    self._roles.send(_CACHER, {"ended": key[1]})
        elif key[0] == "trainer":
            if _TRACEBACK in line:
                self._tracebacks[key] = time.monotonic()
            elif key in self._tracebacks and _EXCEPTION.match(line):
                self._exceptions[key] = line
            self._roles.keep_line(key, line)
            self._on_line(name_of(key), line)
        elif (message := self._roles.message_of(key, line)) is None:
            if line:  # else it is that before a message of a script that reads
                self._roles.keep_line(key, line)
        elif "error" in message:
            self._errors.setdefault(key, str(message["error"]))
        elif "silent" in message:
            silent, alive = (list(map(key_of, message[name])) for name in ("silent", "alive"))
            names = ", ".join(map(name_of, silent))
            if not self._restarted(silent, f"{names}: {silence_of(self._silence_s)}"):
                raise self._silence(silent, alive)
        elif "answer" in message:
            self._silences.refresh(key)
        elif "status" in message and self._rounds is not None:
            self._rounds.take(key, message["status"])
        else:
            self._restarts.take(key, message)
            self._returns.take(message)

    def _restarted(self, lost: Sequence[ProcessKey], reason: str) -> bool:
        """Start lost processes again while the others go on, if they are such; return whether."""
        if not self._running or self._failed() or not self._restarts.restart(lost):
            return False
        if self._rounds is not None:
            for key in lost:
                self._rounds.replaced(key)
        self._on_line("supervisor", restarted_line(reason, lost))
        return True

    def _failure(self) -> JobError:
        """Return the error of the process whose failure is the most likely cause of the others'.

        One that was ended by a signal reports no error; a trainer's error may be the loss of a
        process that serves, or of a trainer whose traceback was printed before.
        """
        signalled = [key for key, code in self._ends.items() if code < 0]
        # an interpreter that ends by an error can abort, which is no cause of another's kill
        signalled.sort(key=lambda key: self._ends[key] == -signal.SIGABRT)
        serving = [key for key in self._ends if key[0] != "trainer"]
        failed = [key for key, code in self._ends.items() if code]
        failed.sort(key=lambda key: self._tracebacks.get(key, 0.0))  # one without is no follower
        key = [*signalled, *self._errors, *serving, *failed][0]
        code = self._ends.get(key, 1)
        if key in self._errors:
            end = f": {self._errors[key]}"
        else:
            end = f"{_end_of(code)}{self._ended_before(key)}"
        last_lines = [*self._roles.last_lines(key)]
        exception = self._exceptions.get(key)
        if exception is not None and exception not in last_lines:
            last_lines = [exception, "...", *last_lines]
        lines = "\n".join(last_lines).strip("\n")
        last = f"{LAST_LINES}\n{lines}" if lines else ""
        exit_code = 1 if key[0] != "trainer" else 128 - code if code < 0 else code
        lost = key not in self._errors and (code < 0 or key[0] != "trainer")
        lost = lost or key in self._restarts.starting
        text = f"{name_of(key)}{end}{last}"
        if key in self._returns.absent:
            of_host = self._hosts.of(key).address
            absent = sorted(self._returns.absent)
            gone = [trainer for trainer in absent if self._hosts.of(trainer).address == of_host]
            return gone_error(gone, self._hosts, text)
        return JobError(text, exit_code, lost=lost, processes=[name_of(key)])

    def _ended_before(self, key: ProcessKey) -> str:
        """Return an error's words on trainers that had ended before a trainer failed."""
        ended = [process for process, code in self._ends.items() if code == 0 and process != key]
        names = ", ".join(name_of(process) for process in ended if process[0] == "trainer")
        if key[0] != "trainer" or not names:
            return ""
        return f", when {names} had ended: all trainers need the same epochs"


def _end_of(code: int) -> str:
    return f" was ended by signal {-code}" if code < 0 else f" ended with exit code {code}"
