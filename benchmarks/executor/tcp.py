"""Sixteen MiB from host to host, beside what iperf3 gets on the same pair."""

import statistics
import subprocess
from collections.abc import Mapping

from benchmarks.executor import iperf
from benchmarks.executor.launch import Group, groups_on_hosts, rival_columns
from benchmarks.executor.turns import MIB, rotated, size_text, slowest_us
from benchmarks.harness import Report
from headrace import _native
from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.network import INTERFACE
from headrace.testbed.spec import RESERVED_HOST
from headrace.testbed.teardown import find_program, namespace_name

BYTES = 16 * MIB
RIVALS = ("native", "headrace", "gloo")
UNSHAPED = "unshaped"
SHAPED = "1gbit"

_FASTEST = "100gbit"
_IPERF_S, _QUICK_IPERF_S = 3, 1
_MESSAGES = {SHAPED: 4, UNSHAPED: 16}
_BURSTS = {SHAPED: 3, UNSHAPED: 8}
_ROUNDS = {SHAPED: 7, UNSHAPED: 15}
"""More without a shaper, where rounds of one rival can differ a lot."""

_DEADLINE_S = 30.0


def bars() -> dict[str, str]:
    """Return the bars: headrace's rate as a share of iperf3's, the slower interface's."""
    return {_bar(SHAPED): ">=0.95", _bar(UNSHAPED): ">=0.95"}


def _bar(network: str) -> str:
    return f"tcp-{network}-of-iperf3"


def spec(network: str) -> TestbedSpec:
    """Return two hosts, on one bridge."""
    rate = SHAPED if network == SHAPED else _FASTEST
    return TestbedSpec.from_table(
        {"name": f"pair-{network}", "defaults": {"host_rate": rate}, "racks": [{"hosts": 2}]}
    )


def lift_limits(testbed: Testbed) -> None:
    """Take the token buckets off all links."""
    tc = find_program("tc")
    ends = [(host.name, INTERFACE) for host in testbed.hosts]
    ends += [(RESERVED_HOST, f"host{index}") for index in range(len(testbed.hosts))]
    for owner, device in ends:
        namespace = namespace_name(testbed.run, owner)
        command = [str(tc), "-n", namespace, "qdisc", "delete", "dev", device, "root"]
        subprocess.run(command, check=True, timeout=_DEADLINE_S)


def measure(report: Report, *, quick: bool) -> None:
    """Measure both networks, and give the bars."""
    missing = iperf.missing()
    if missing is not None:
        report.note(f"tcp: {missing}")
    for network in (SHAPED, UNSHAPED):
        with Testbed.up(spec(network), fallback=False) as testbed:
            if network == UNSHAPED:
                lift_limits(testbed)
            rates = _rates(testbed, network, quick=quick, with_iperf=missing is None)
        typical = {rival: statistics.median(each) for rival, each in rates.items()}
        best = typical.get("iperf3")
        for rival, rate in typical.items():
            report.row(
                f"TCP, two hosts, {size_text(BYTES)} from one to the other",
                network=network,
                **rival_columns(rival),
                mbit_per_s=_mbit(rate),
                slowest_round=_mbit(min(rates[rival])),
                fastest_round=_mbit(max(rates[rival])),
                of_iperf3=None if best is None else round(rate / best, 3),
            )
        if best is not None:
            report.bar(_bar(network), min(typical["native"], typical["headrace"]) / best)
    report.note(
        f"TCP: medians over rounds in turn; a round is {_IPERF_S} s of iperf3 ({_QUICK_IPERF_S} if "
        "quick) once its windows are open, "
        "or bursts of messages sent one after another on warm connections, each until the last has "
        "arrived: bytes over time; every message is checked"
    )


def _rates(
    testbed: Testbed, network: str, *, quick: bool, with_iperf: bool
) -> dict[str, list[float]]:
    """Return every rival's rates in bytes a second, by round."""
    encrypted = ["tls"] if network == UNSHAPED and _native.has_tls() else []  # no bar
    rivals = [*RIVALS, *encrypted]
    with groups_on_hosts(rivals, testbed) as groups:
        names = [*(["iperf3"] if with_iperf else []), *rivals]
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(3 if quick else _ROUNDS[network]):
            for name in rotated(names, number):
                if name == "iperf3":
                    found[name].append(_iperf(testbed, _QUICK_IPERF_S if quick else _IPERF_S))
                else:
                    found[name].append(_messages(groups, name, network))
    return found


def _mbit(bytes_per_s: float) -> float:
    return round(bytes_per_s * 8 / 1e6, 1)


def _iperf(testbed: Testbed, seconds: int) -> float:
    sender, receiver = testbed.hosts
    with iperf.server(testbed, receiver.name):
        return iperf.bytes_per_s(testbed, sender.name, receiver.address, seconds)


def _messages(groups: Mapping[str, Group], name: str, network: str) -> float:
    pool, bursts = _MESSAGES[network], _BURSTS[network]
    answers = groups[name].ask("messages", bytes=BYTES, pool=pool, bursts=bursts, warm_up=1)
    # bytes over time, as iperf3's rate is
    return bursts * pool * BYTES / (sum(slowest_us(answers)) / 1e6)
