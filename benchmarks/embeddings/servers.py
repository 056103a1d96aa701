"""Servers of rows: calls of them beside the transport alone, and memory for each row."""

import json
import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from benchmarks.embeddings.bed import MBIT, spec
from benchmarks.harness import ROOT, Report
from benchmarks.jobs import WHERE
from headrace.launch.roles import Roles
from headrace.settings import child_environment
from headrace.testbed import Testbed, rank_roles

FETCHED = 65_000
DIM = 48
KINDS = ("hashed", "dense")
_PORT = 29_900
_ANSWER_S = 300.0
_MEMORY_ROWS = 10_000_000
_MEMORY_DIM = 16


def bars() -> dict[str, str]:
    """Return the bars."""
    return {
        "serve-over-transport": "<=1.15",
        "bytes-per-row-over-payload-hashed": "<=1.40",
        "bytes-per-row-over-payload-dense": "<=1.05",
    }


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Time calls on a network and on one host, and fill a store of each kind."""
    del quick
    rows, rounds = 4_000_000, 31
    over: list[float] = []
    with Testbed.up(spec(0, MBIT)) as testbed:
        for network, hosts in ((f"{MBIT} Mbit/s", (0, 1)), ("loopback", (0, 0))):
            for kind in KINDS:
                seconds = _seconds(testbed, hosts, rows, kind, rounds)
                ratio = _row(report, network, kind, rows, seconds)
                if network != "loopback":
                    over.append(ratio)
    report.bar("serve-over-transport", max(over))
    for kind in KINDS:
        report.bar(f"bytes-per-row-over-payload-{kind}", _memory(report, kind))


def _row(
    report: Report, network: str, kind: str, rows: int, seconds: dict[str, list[float]]
) -> float:
    """Report the times of calls; return that of fetching rows over that of one block."""

    def over(of_rows: str, of_block: str) -> float:
        pairs = zip(seconds[of_rows], seconds[of_block], strict=True)
        return statistics.median(own / transport for own, transport in pairs)

    ratio = over("fetch", "block")
    report.row(
        f"{FETCHED} of {rows} rows of {DIM} floats in 26 tables, and one block of as many bytes",
        network=network,
        tables=kind,
        **{f"{name} ms": 1e3 * statistics.median(times) for name, times in seconds.items()},
        **{"fetch/block": ratio, "write/block": over("write back", "block written")},
    )
    return ratio


def _seconds(
    testbed: Testbed, hosts: tuple[int, int], rows: int, kind: str, rounds: int
) -> dict[str, list[float]]:
    with _started(testbed, hosts, rows, kind) as roles:
        roles.send(0, {"rounds": 2})  # buffers and connections are warm afterwards
        _answer(roles)
        roles.send(0, {"rounds": rounds})
        return _answer(roles)["seconds"]


@contextmanager
def _started(
    testbed: Testbed, hosts: tuple[int, int], rows: int, kind: str
) -> Generator[Roles[int]]:
    """Yield a trainer and a server whose rows exist."""
    command = [sys.executable, "-m", "benchmarks.embeddings.rank_of_rows"]
    task = {
        "address": f"{testbed.hosts[hosts[1]].address}:{_PORT}",
        "rows": rows,
        "fetched": FETCHED,
        "dim": DIM,
        "hashed": kind == "hashed",
    }
    with Roles(dict(enumerate(rank_roles(testbed, command, hosts, WHERE)))) as roles:
        for rank in range(2):
            roles.send(rank, {**task, "rank": rank})
        _answer(roles)
        roles.send(0, {})
        _answer(roles)
        yield roles


def _answer(roles: Roles[int]) -> dict[str, dict[str, list[float]]]:
    answer = roles.expect("an answer", _ANSWER_S)
    if answer is None:
        raise RuntimeError("the processes ended early")
    return answer[1]


def _memory(report: Report, kind: str) -> float:
    """Return the memory of rows over that of their numbers, by the larger of two counts."""
    command = [sys.executable, "-m", "benchmarks.embeddings.memory_of_rows"]
    completed = subprocess.run(
        [*command, str(_MEMORY_ROWS), str(_MEMORY_DIM), kind],
        cwd=ROOT.parent,
        env=child_environment(WHERE),
        capture_output=True,
        text=True,
        check=True,
        timeout=_ANSWER_S,
    )
    figures = json.loads(completed.stdout)
    payload_bytes = 4 * _MEMORY_ROWS * _MEMORY_DIM
    counted, resident = (
        figures[name] / payload_bytes for name in ("counted_bytes", "resident_bytes")
    )
    report.row(
        f"{_MEMORY_ROWS} rows of {_MEMORY_DIM} floats",
        table=kind,
        **{"counted/payload": counted, "resident/payload": resident},
        created_ns=figures["created_ns"],
    )
    return max(counted, resident)
