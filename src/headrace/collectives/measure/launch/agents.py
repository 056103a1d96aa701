"""Measuring a testbed: starts an agent on every host and hands on what they find.

An agent that dies, or hangs, ends the executor group of all. Those who are left say so, and are
told to form another; the survey goes on among them.
"""

import base64
import queue
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import headrace.artifact as artifact_io
from headrace.collectives.measure.effort import ProbeEffort, ProgressCallback
from headrace.collectives.measure.launch.processes import Processes, exit_text
from headrace.collectives.measure.profile import KIND, Profile
from headrace.errors import CommunicationError
from headrace.testbed import Testbed

_AGENT = (sys.executable, "-m", "headrace.collectives.measure.launch.agent")
_SILENCE_S = 90.0
_AFTERMATH_S = 2.0  # how long the first to fail waits for what others have to say
_MUSTER_S = 15.0  # and for those who live to say so: the one that conducts may be computing


def measure_testbed(
    testbed: Testbed,
    rank_hosts: Sequence[str],
    *,
    effort: ProbeEffort | None = None,
    progress: ProgressCallback | None = None,
) -> Profile:
    """Measure a testbed that is up, with one process per rank.

    Ranks that are lost while it lasts are left out of the profile, which names them in its
    provenance.

    Parameters
    ----------
    rank_hosts : name of every rank's host; a host may have several ranks.

    Raises
    ------
    TestbedError : a host is not of this testbed.
    CommunicationError : naming the host whose agent died, failed or fell silent, if it happened
        at the start, too often, or left fewer than two hosts.
    """
    effort = effort or ProbeEffort()
    listen = [testbed.host(name).address for name in rank_hosts]
    with _Agents(testbed, rank_hosts, effort.most_losses) as agents:
        agents.send(
            range(len(rank_hosts)),
            (
                {
                    "rank": rank,
                    "hosts": list(rank_hosts),
                    "listen": listen[rank],
                    "effort": asdict(effort),
                }
                for rank in range(len(rank_hosts))
            ),
        )
        profile = agents.profile(progress or (lambda _what, _share: None))
    # a job's ranks know one another by address, not by the testbed's names
    located = tuple(testbed.host(name).address for name in profile.topology.hosts)
    return replace(profile, topology=replace(profile.topology, addresses=located))


class _Agents(Processes):
    """The agents' processes and what they say."""

    def __init__(self, testbed: Testbed, hosts: Sequence[str], most_losses: int) -> None:
        def start(rank: int, **options: Any) -> "subprocess.Popen[str]":
            return testbed.popen(hosts[rank], _AGENT, **options)

        super().__init__(start, len(hosts))
        self._hosts = tuple(hosts)
        self._ended: set[int] = set()
        self._members = list(range(len(hosts)))
        self._generation = -1
        self._losses_left = most_losses
        self._under_way = False
        self._addresses: dict[int, str] = {}
        self._shown = 0.0

    def profile(self, progress: ProgressCallback) -> Profile:
        """Bring the agents together, as often as it takes, and wait for the profile."""
        self._call_together()
        while True:
            rank, message = self._next()
            if message is None:
                self._end_of(rank)
            elif "error" in message:
                raise self._failure({rank: message["error"]})
            elif "progress" in message:
                self._under_way = True
                what, share = message["progress"]
                self._shown = max(self._shown, share)  # who takes over begins anew
                progress(what, self._shown)
            elif "profile" in message:
                raw = base64.b64decode(message["profile"])
                return Profile.from_artifact(artifact_io.from_bytes(raw, kind=KIND))
            elif message["generation"] == self._generation:
                if "address" in message:
                    self._introduce(rank, message["address"])
                else:
                    self._muster({rank}, message["lost"])

    def _call_together(self) -> None:
        """Tell the members to form a group."""
        self._generation += 1
        self._addresses.clear()
        call = {
            "members": self._members,
            "generation": self._generation,
            "secret": secrets.token_hex(16),
        }
        self.send(self._members, [call] * len(self._members))

    def _introduce(self, rank: int, address: str) -> None:
        """Note where a member listens; once all do, tell them to connect."""
        self._addresses[rank] = address
        if len(self._addresses) == len(self._members):
            addresses = [self._addresses[member] for member in self._members]
            call = {"addresses": addresses, "generation": self._generation}
            self.send(self._members, [call] * len(self._members))

    def _end_of(self, rank: int) -> None:
        self._ended.add(rank)
        # followers end in good order when the one that conducts is about to send the profile
        if self._processes[rank].wait() != 0 and rank in self._members:
            self._muster(set(), "")
        elif self._ended.issuperset(self._members):
            raise CommunicationError("measuring failed: all agents ended without a profile")

    def _muster(self, alive: set[int], reason: str) -> None:
        """Find out who is left after a loss, and bring them together."""
        reasons = dict.fromkeys(alive, reason)
        if not self._under_way or self._losses_left < 1:
            raise self._failure(reasons)
        self._losses_left -= 1
        until = time.monotonic() + _MUSTER_S
        while len(reasons.keys() | self._ended & set(self._members)) < len(self._members):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            with suppress(queue.Empty):
                rank, message = self.receive(left_s)
                if message is None:
                    self._ended.add(rank)
                elif "error" in message:
                    raise self._failure({rank: message["error"]})
                elif "lost" in message and message["generation"] == self._generation:
                    reasons[rank] = message["lost"]
        for rank in self._members:
            if rank not in reasons and rank not in self._ended:
                self._processes[rank].kill()  # it hangs, and must not disturb the others
        left = [rank for rank in self._members if rank in reasons and rank not in self._ended]
        if len({self._hosts[rank] for rank in left}) < 2:
            raise self._failure(reasons)
        self._members = left
        self._call_together()

    def _next(self) -> tuple[int, dict[str, Any] | None]:
        """Wait for what an agent says; None is its end."""
        try:
            return self.receive(_SILENCE_S)
        except queue.Empty:
            raise CommunicationError(
                f"the agents on {', '.join(map(repr, self._hosts))} said nothing for "
                f"{_SILENCE_S:g} s: measuring is stuck"
            ) from None

    def _failure(self, errors: dict[int, str]) -> CommunicationError:
        """Say what went wrong: a process that died explains the errors of the others."""
        until = time.monotonic() + _AFTERMATH_S
        while len(self._ended) < len(self._hosts) and time.monotonic() < until:
            with suppress(queue.Empty):
                rank, message = self.receive(0.05)
                if message is None:
                    self._ended.add(rank)
                elif text := message.get("error", message.get("lost")):
                    errors.setdefault(rank, text)
        dead = [
            f"the agent on host '{self._hosts[rank]}' (rank {rank}) {exit_text(code)}"
            for rank, process in enumerate(self._processes)
            if (code := process.poll()) and rank not in errors
        ]
        told = [f"host '{self._hosts[rank]}': {text}" for rank, text in sorted(errors.items())]
        return CommunicationError("measuring failed: " + "; ".join([*dead, *told[:1]]))
