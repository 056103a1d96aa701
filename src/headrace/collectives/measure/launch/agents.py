"""Measuring a testbed: starts an agent for every rank and receives the profile.

An agent that dies, or hangs, ends the executor group of all. The survivors report the loss and,
on command, form another group, in which the survey continues.
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
from headrace.collectives.measure.budget import ProbeEffort, ProgressCallback
from headrace.collectives.measure.launch.processes import Processes, exit_text
from headrace.errors import CommunicationError
from headrace.testbed import Testbed
from headrace.topology.profile import KIND, Profile

_AGENT = (sys.executable, "-m", "headrace.collectives.measure.launch.agent")
_SILENCE_S = 90.0
_AFTERMATH_S = 2.0  # wait for further errors after the first
_SURVIVORS_S = 15.0  # wait for reports of survivors: the leader may be computing


def measure_testbed(
    testbed: Testbed,
    rank_hosts: Sequence[str],
    *,
    effort: ProbeEffort | None = None,
    progress: ProgressCallback | None = None,
) -> Profile:
    """Measure a testbed that is up, with one process per rank.

    Ranks that are lost on the way are left out of the profile, which names them in its provenance.

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
    # jobs identify hosts by address, not by the testbed's names
    located = tuple(testbed.host(name).address for name in profile.topology.hosts)
    return replace(profile, topology=replace(profile.topology, addresses=located))


class _Agents(Processes):
    """The agents' processes, and the protocol with them."""

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
        """Form groups of the agents, again after every loss, and wait for the profile."""
        self._form_group()
        while True:
            rank, message = self._next()
            if message is None:
                self._end_of(rank)
            elif "error" in message:
                raise self._failure({rank: message["error"]})
            elif "progress" in message:
                self._under_way = True
                what, share = message["progress"]
                self._shown = max(self._shown, share)  # a new leader restarts at 0
                progress(what, self._shown)
            elif "profile" in message:
                raw = base64.b64decode(message["profile"])
                return Profile.from_artifact(artifact_io.from_bytes(raw, kind=KIND))
            elif message["generation"] == self._generation:
                if "address" in message:
                    self._note_address(rank, message["address"])
                else:
                    self._regroup({rank}, message["lost"])

    def _form_group(self) -> None:
        """Send the members the command to form a group."""
        self._generation += 1
        self._addresses.clear()
        call = {
            "members": self._members,
            "generation": self._generation,
            "secret": secrets.token_hex(16),
        }
        self.send(self._members, [call] * len(self._members))

    def _note_address(self, rank: int, address: str) -> None:
        """Record the address of a member; with those of all, have them connect."""
        self._addresses[rank] = address
        if len(self._addresses) == len(self._members):
            addresses = [self._addresses[member] for member in self._members]
            call = {"addresses": addresses, "generation": self._generation}
            self.send(self._members, [call] * len(self._members))

    def _end_of(self, rank: int) -> None:
        self._ended.add(rank)
        # followers end with code 0 when the leader is about to send the profile
        if self._processes[rank].wait() != 0 and rank in self._members:
            self._regroup(set(), "")
        elif self._ended.issuperset(self._members):
            raise CommunicationError("measuring failed: all agents ended without a profile")

    def _regroup(self, alive: set[int], reason: str) -> None:
        """Collect the survivors of a loss, and form a group of them."""
        reasons = dict.fromkeys(alive, reason)
        if not self._under_way or self._losses_left < 1:
            raise self._failure(reasons)
        self._losses_left -= 1
        until = time.monotonic() + _SURVIVORS_S
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
        survivors = [r for r in self._members if r in reasons and r not in self._ended]
        if len({self._hosts[rank] for rank in survivors}) < 2:
            raise self._failure(reasons)
        self._members = survivors
        self._form_group()

    def _next(self) -> tuple[int, dict[str, Any] | None]:
        """Wait for a message of an agent; None is its end."""
        try:
            return self.receive(_SILENCE_S)
        except queue.Empty:
            raise CommunicationError(
                f"the agents on {', '.join(map(repr, self._hosts))} sent nothing for "
                f"{_SILENCE_S:g} s: measuring is stuck"
            ) from None

    def _failure(self, errors: dict[int, str]) -> CommunicationError:
        """Return the error: a process that died is the cause of the errors of others."""
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
        reported = [f"host '{self._hosts[rank]}': {text}" for rank, text in sorted(errors.items())]
        return CommunicationError("measuring failed: " + "; ".join([*dead, *reported[:1]]))
