"""Measuring a testbed: starts an agent on every host and hands on what rank 0 finds."""

import base64
import json
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import headrace.artifact as artifact_io
from headrace.collectives.measure.effort import Effort, Progress
from headrace.collectives.measure.profile import KIND, Profile
from headrace.errors import CommunicationError
from headrace.testbed import Testbed

_AGENT = (sys.executable, "-m", "headrace.collectives.measure.launch.agent")
_SILENCE_S = 90.0
_AFTERMATH_S = 2.0  # how long the first to fail waits for what others have to say
_GRACE_S = 2.0


def measure_testbed(
    testbed: Testbed,
    rank_hosts: Sequence[str],
    *,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure a testbed that is up, with one process per rank.

    Parameters
    ----------
    rank_hosts : name of every rank's host; a host may have several ranks.

    Raises
    ------
    TestbedError : a host is not of this testbed.
    CommunicationError : naming the host whose agent died, failed or fell silent.
    """
    listen = [testbed.host(name).address for name in rank_hosts]
    with _Agents(testbed, rank_hosts) as agents:
        agents.tell(
            {
                "rank": rank,
                "hosts": list(rank_hosts),
                "listen": listen[rank],
                "token": agents.token,
                "effort": asdict(effort or Effort()),
            }
            for rank in range(len(rank_hosts))
        )
        addresses = agents.addresses()
        agents.tell({"addresses": addresses} for _ in rank_hosts)
        profile = agents.profile(progress or (lambda _what, _share: None))
    # a job's ranks know one another by address, not by the testbed's names
    located = tuple(testbed.host(name).address for name in profile.topology.hosts)
    return replace(profile, topology=replace(profile.topology, addresses=located))


class _Agents:
    """The agents' processes and what they say. As a context manager it ends them all."""

    def __init__(self, testbed: Testbed, hosts: Sequence[str]) -> None:
        self._testbed = testbed
        self._hosts = tuple(hosts)
        self._processes: list[subprocess.Popen[str]] = []
        self._heard: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._ended: set[int] = set()
        self.token = secrets.token_hex(16)

    def __enter__(self) -> "_Agents":
        try:
            for rank, host in enumerate(self._hosts):
                process: subprocess.Popen[str] = self._testbed.popen(
                    host,
                    _AGENT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for this process, which ends the agents
                )
                self._processes.append(process)
                threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        until = time.monotonic() + _GRACE_S
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()

    def tell(self, messages: Iterable[dict[str, Any]]) -> None:
        """Send every agent its message, by rank."""
        for process, message in zip(self._processes, messages, strict=True):
            assert process.stdin is not None
            with suppress(OSError):  # one that is gone is reported by its silence
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()

    def addresses(self) -> list[str]:
        """Wait until all agents listen; returns their addresses by rank."""
        found: dict[int, str] = {}
        while len(found) < len(self._hosts):
            rank, message = self._next()
            found[rank] = message["address"]
        return [found[rank] for rank in range(len(self._hosts))]

    def profile(self, progress: Progress) -> Profile:
        """Wait for the profile, passing progress on."""
        while True:
            _, message = self._next()
            if "progress" in message:
                what, share = message["progress"]
                progress(what, share)
            elif "profile" in message:
                raw = base64.b64decode(message["profile"])
                return Profile.from_artifact(artifact_io.from_bytes(raw, kind=KIND))

    def _next(self) -> tuple[int, dict[str, Any]]:
        """Wait for what an agent says; raises if it is an error, or its end before the profile."""
        while True:
            try:
                rank, line = self._heard.get(timeout=_SILENCE_S)
            except queue.Empty:
                raise CommunicationError(
                    f"the agents on {', '.join(map(repr, self._hosts))} said nothing for "
                    f"{_SILENCE_S:g} s: measuring is stuck"
                ) from None
            if line is None:
                self._ended.add(rank)
                # followers end in good order when rank 0 is about to send the profile
                if self._processes[rank].wait() != 0:
                    raise self._failure({})
                if rank == 0:
                    raise CommunicationError(f"the agent on {self._hosts[0]!r} ended too early")
                continue
            message = _parsed(line)
            if "error" in message:
                raise self._failure({rank: message["error"]})
            return rank, message

    def _failure(self, errors: dict[int, str]) -> CommunicationError:
        """Say what went wrong: a process that died explains the errors of the others."""
        until = time.monotonic() + _AFTERMATH_S
        while len(self._ended) < len(self._hosts) and time.monotonic() < until:
            with suppress(queue.Empty):
                rank, line = self._heard.get(timeout=0.05)
                if line is None:
                    self._ended.add(rank)
                elif "error" in (message := _parsed(line)):
                    errors.setdefault(rank, message["error"])
        dead = [
            f"the agent on host '{self._hosts[rank]}' (rank {rank}) {_how(code)}"
            for rank, process in enumerate(self._processes)
            if (code := process.poll()) and rank not in errors
        ]
        told = [f"host '{self._hosts[rank]}': {text}" for rank, text in sorted(errors.items())]
        return CommunicationError("measuring failed: " + "; ".join([*dead, *told[:1]]))

    def _listen(self, rank: int, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._heard.put((rank, line))
        self._heard.put((rank, None))


def _parsed(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {"error": f"unexpected output: {line.strip()[:200]}"}
    return message if isinstance(message, dict) else {"error": f"unexpected output: {line.strip()}"}


def _how(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
