"""Measuring a testbed: starts an agent for every rank and receives the profile.

An agent that dies, or hangs, ends the executor group of all. The survivors report the loss and,
on command, form another group, in which the survey continues.
"""

import base64
import queue
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from headrace.collectives.measure.budget import ProbeEffort, ProgressCallback
from headrace.errors import CommunicationError
from headrace.launch.roles import Role, Roles
from headrace.testbed import Testbed
from headrace.topology.profile import Profile

_AGENT = (sys.executable, "-m", "headrace.collectives.measure.launch.agent")
_SILENCE_S = 90.0
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
    roles = [
        Role(
            name=f"the agent on host '{host}' (rank {rank})",
            argv=_AGENT,
            start=partial(testbed.popen, host),
        )
        for rank, host in enumerate(rank_hosts)
    ]
    with Roles(dict(enumerate(roles))) as started:
        for rank, address in enumerate(listen):
            task = {"rank": rank, "hosts": list(rank_hosts), "listen": address}
            started.send(rank, task | {"effort": asdict(effort)})
        agents = _Agents(started, rank_hosts, effort.most_losses)
        profile = agents.profile(progress or (lambda _what, _share: None))
    # jobs identify hosts by address, not by the testbed's names
    located = tuple(testbed.host(name).address for name in profile.topology.hosts)
    return replace(profile, topology=replace(profile.topology, addresses=located))


class _Agents:
    """The protocol with the agents."""

    def __init__(self, roles: Roles[int], hosts: Sequence[str], most_losses: int) -> None:
        self._roles = roles
        self._hosts = tuple(hosts)
        self._members = list(range(len(hosts)))
        self._generation = -1
        self._losses_left = most_losses
        self._under_way = False
        self._addresses: dict[int, str] = {}
        self._shown = 0.0
        self._profile: str | None = None

    def profile(self, progress: ProgressCallback) -> Profile:
        """Form groups of the agents, again after every loss, and wait for the profile."""
        self._form_group()
        while self._profile is None:
            rank, message = self._roles.next("measuring", _SILENCE_S)
            if message is None:
                self._end_of(rank)
            elif "error" in message:
                raise self._roles.failure("measuring", {rank: message["error"]})
            elif "progress" in message:
                self._under_way = True
                what, share = message["progress"]
                self._shown = max(self._shown, share)  # a new leader restarts at 0
                progress(what, self._shown)
            elif "profile" in message:
                self._profile = message["profile"]
            elif message["generation"] == self._generation:
                if "address" in message:
                    self._note_address(rank, message["address"])
                else:
                    self._regroup({rank}, message["lost"])
        return Profile.from_bytes(base64.b64decode(self._profile))

    def _form_group(self) -> None:
        """Send the members the command to form a group."""
        self._generation += 1
        self._addresses.clear()
        self._call(members=self._members, secret=secrets.token_hex(16))

    def _note_address(self, rank: int, address: str) -> None:
        """Record the address of a member; with those of all, have them connect."""
        self._addresses[rank] = address
        if len(self._addresses) == len(self._members):
            self._call(addresses=[self._addresses[member] for member in self._members])

    def _call(self, **message: Any) -> None:
        for member in self._members:
            self._roles.send(member, {**message, "generation": self._generation})

    def _end_of(self, rank: int) -> None:
        # followers end with code 0 when the leader is about to send the profile
        if self._roles.exit_code(rank) != 0 and rank in self._members:
            self._regroup(set(), "")
        elif all(self._has_ended(member) for member in self._members):
            raise CommunicationError("measuring failed: all agents ended without a profile")

    def _has_ended(self, rank: int) -> bool:
        return self._roles.exit_code(rank) is not None

    def _regroup(self, alive: set[int], reason: str) -> None:
        """Collect the survivors of a loss, and form a group of them."""
        reasons = dict.fromkeys(alive, reason)
        if not self._under_way or self._losses_left < 1:
            raise self._roles.failure("measuring", reasons)
        self._losses_left -= 1
        until = time.monotonic() + _SURVIVORS_S
        with suppress(queue.Empty):
            while not all(rank in reasons or self._has_ended(rank) for rank in self._members):
                rank, message = self._roles.receive(max(0.0, until - time.monotonic()))
                if message is None:
                    continue
                if "error" in message:
                    raise self._roles.failure("measuring", {rank: message["error"]})
                if "profile" in message:  # the loss came behind the measuring
                    self._profile = message["profile"]
                    return
                if "lost" in message and message["generation"] == self._generation:
                    reasons[rank] = message["lost"]
        # one that hangs must not disturb the others
        hanging = [r for r in self._members if r not in reasons and not self._has_ended(r)]
        self._roles.end(hanging, grace_s=0.0)
        survivors = [r for r in self._members if r in reasons and not self._has_ended(r)]
        if len({self._hosts[rank] for rank in survivors}) < 2:
            raise self._roles.failure("measuring", reasons)
        self._members = survivors
        self._form_group()
