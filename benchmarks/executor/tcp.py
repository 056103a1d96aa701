"""Sixteen MiB from host to host, beside iperf3 on the same pair."""

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
RIVALS = ("native", "headrace", "gloo", "sockets")
UNSHAPED = "unshaped"
SHAPED = "1gbit"

_FASTEST = "100gbit"
_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Number and length of the rivals' turns.

    Attributes
    ----------
    iperf_s : of a turn of iperf3.
    bursts, messages : of a turn of the others, and in a burst.
    """

    rounds: int
    quick_rounds: int
    iperf_s: int
    bursts: int
    messages: int


# Without a shaper the machine is the limit, whose speed can change by a third within seconds: so
# turns are short, rates are compared within a round, and there are many rounds.
TURNS = {
    SHAPED: Turns(rounds=7, quick_rounds=3, iperf_s=2, bursts=3, messages=4),
    UNSHAPED: Turns(rounds=41, quick_rounds=9, iperf_s=1, bursts=2, messages=16),
}


def bars() -> dict[str, str]:
    """Return the bars: headrace's rate over iperf3's in the same round; the slower interface's."""
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
    """Remove the token buckets of all links."""
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
        shares = of_iperf3(rates)
        for rival, each in rates.items():
            report.row(
                f"TCP, two hosts, {size_text(BYTES)} from one to the other",
                network=network,
                **rival_columns(rival),
                mbit_per_s=_mbit(statistics.median(each)),
                slowest_round=_mbit(min(each)),
                fastest_round=_mbit(max(each)),
                of_iperf3=round(shares[rival], 3) if rival in shares else None,
                rounds=len(each),
            )
        if shares:
            report.bar(_bar(network), min(shares["native"], shares["headrace"]))
    report.note(
        "TCP: medians over rounds, in which each has a turn: iperf3 "
        f"{TURNS[UNSHAPED].iperf_s} s ({TURNS[SHAPED].iperf_s} at 1 Gbit/s) once its windows are "
        f"open, the others {TURNS[UNSHAPED].bursts} bursts of {TURNS[UNSHAPED].messages} messages "
        f"({TURNS[SHAPED].bursts} of {TURNS[SHAPED].messages}) sent one after another on warm "
        "connections, each until the last has arrived: bytes over time; of_iperf3: the median of "
        "the rounds' ratios; every message is checked; sockets: one connection, blocking calls "
        "from Python"
    )


def of_iperf3(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return by rival the median over rounds of its rate over iperf3's; {} without iperf3."""
    if "iperf3" not in rates:
        return {}
    return {
        rival: statistics.median(
            rate / beside for rate, beside in zip(each, rates["iperf3"], strict=True)
        )
        for rival, each in rates.items()
    }


def _rates(
    testbed: Testbed, network: str, *, quick: bool, with_iperf: bool
) -> dict[str, list[float]]:
    """Return every rival's rates in bytes a second, by round."""
    encrypted = ["tls"] if network == UNSHAPED and _native.has_tls() else []  # no bar
    rivals = [*RIVALS, *encrypted]
    with groups_on_hosts(rivals, testbed) as groups:
        names = [*(["iperf3"] if with_iperf else []), *rivals]
        found: dict[str, list[float]] = {name: [] for name in names}
        turns = TURNS[network]
        for number in range(turns.quick_rounds if quick else turns.rounds):
            for name in rotated(names, number):
                if name == "iperf3":
                    found[name].append(_iperf(testbed, turns.iperf_s))
                else:
                    found[name].append(_messages(groups[name], turns))
    return found


def _mbit(bytes_per_s: float) -> float:
    return round(bytes_per_s * 8 / 1e6, 1)


def _iperf(testbed: Testbed, seconds: int) -> float:
    sender, receiver = testbed.hosts
    with iperf.server(testbed, receiver.name):
        return iperf.bytes_per_s(testbed, sender.name, receiver.address, seconds)


def _messages(group: Group, turns: Turns) -> float:
    answers = group.ask(
        "messages", bytes=BYTES, pool=turns.messages, bursts=turns.bursts, warm_up=1
    )
    # bytes over time, as iperf3's rate is
    return turns.bursts * turns.messages * BYTES / (sum(slowest_us(answers)) / 1e6)
