"""The adviser's step model against measured steps, on testbeds of shaped links.

For every number of workers one job measures, on fast links, the profile of each network (codecs
with all ranks encoding at once) and the latency of a message. Then the links are set to each rate,
and the predictions, made from these and the nominal rate alone, are compared with the steps of DDP
and of the hook. Nothing is fitted to a cell.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.compression.networks import EMULATED, NETWORKS, REAL
from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE
from benchmarks.kept import KeptRows
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.step import AFTER, DURING, step_time, step_work
from headrace.compression.profile import CompressionProfile
from headrace.launch.roles import Roles
from headrace.testbed import Testbed, rank_roles

SECTION = "model"
RATES = (10, 30, 100, 300, 1000)
CODECS = ("none", "bf16", "minmax:4", "powersgd:2", "powersgd:4", "topk:1%", "sign")
WORKERS = (2, 4)
FAST_MBIT = 2000
SLOW_HOST, SLOW_SHARE = "host1", 0.4
REAL_MBIT = 100
BOTH_WAYS = 1514 / (1514 + 66 / 2)
"""Share of a rate that is left beside acknowledgements: ranks send while they receive, and TCP
acknowledges every second full frame by one of 66 bytes (RFC 5681)."""
_SECONDS, _LEAST, _MOST = 4.0, 5, 21
"""Steps of a cell: as many as fit into these seconds, within limits."""
_QUICK_SECONDS = 1.0
_ANSWER_S = 600.0
_EXCHANGED_BYTES = 1 << 20
"""Of an all-to-all's rows together, and of what an allgather's ranks have in the end."""

UNCOMPRESSED_MEDIAN, UNCOMPRESSED_MAX, CODECS_MEDIAN, CODECS_P95, WINNER = (
    "model-uncompressed-median",
    "model-uncompressed-max",
    "model-codecs-median",
    "model-codecs-p95",
    "model-winner-within-5%",
)


def bars() -> dict[str, str]:
    """Return the bars: relative errors of predicted steps, and the share of right winners."""
    return {
        UNCOMPRESSED_MEDIAN: "<= 0.02",
        UNCOMPRESSED_MAX: "<= 0.137",
        CODECS_MEDIAN: "<= 0.05",
        CODECS_P95: "<= 0.15",
        WINNER: ">= 0.95",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A network on links of one rate; `uneven`: one host has a share of it."""

    workers: int
    network: str
    compute: str
    mbit: float
    uneven: bool = False

    @property
    def key(self) -> str:
        """Text that is the same in another run."""
        bed = "uneven" if self.uneven else "even"
        return f"{self.workers} {self.network} {self.compute} {self.mbit:g} {bed}"


def cells(*, quick: bool) -> list[Cell]:
    """Return the cells; a quick run has two rates, and fewer networks the more workers."""
    rates = (100, 1000) if quick else RATES
    networks = list(NETWORKS)
    found = [
        Cell(workers=workers, network=network, compute=EMULATED, mbit=rate)
        for workers in WORKERS
        for network in (networks[: 4 // workers] if quick else networks)
        for rate in rates
    ]
    # real computing: two workers, each with a processor of its own
    found += [
        Cell(workers=2, network=network, compute=REAL, mbit=REAL_MBIT)
        for network in (networks[:1] if quick else networks)
    ]
    found += [
        Cell(workers=4, network=network, compute=EMULATED, mbit=rate, uneven=True)
        for network in networks[:1]
        for rate in ((300,) if quick else (30, 100, 300))
    ]
    return sorted(found, key=lambda cell: (cell.workers, cell.uneven, cell.mbit))


def measure(report: Report, *, quick: bool) -> None:
    """Measure all cells that an interrupted run has not measured, and give the bars."""
    kept = KeptRows(
        "compression", "model", quick=quick, folder=report.state_folder, quiet=("times",)
    )
    for workers in WORKERS:
        left = [
            cell
            for cell in cells(quick=quick)
            if cell.workers == workers and any(f"{cell.key} {c}" not in kept.rows for c in CODECS)
        ]
        if left:
            _job(report, left, kept, quick=quick)
    rows = list(kept.rows.values())
    for row in rows:
        shown = {name: value for name, value in row.items() if name not in ("key", "times")}
        report.row("steps, predicted and measured", **shown)
    judge(report, rows)
    report.note(
        "model: Gloo on a testbed of namespaces; emulated computing sleeps for recorded times, "
        "multiplied to 200 ms a step; 'real' computes, two workers on two processors. Predicted "
        "from a profile measured on fast links, the message's latency there, and the nominal rate; "
        "codecs work after the backward pass, 'none' is DDP's own overlap. uneven: one host has "
        f"{SLOW_SHARE:.0%} of the rate. error: predicted over measured median, less 1"
    )
    kept.clear()


def judge(report: Report, rows: Sequence[Mapping[str, Any]]) -> None:
    """Give the bars: errors of the rows, and how good the predicted winners are."""
    plain = [abs(row["error"]) for row in rows if row["codec"] == str(NONE)]
    coded = [abs(row["error"]) for row in rows if row["codec"] != str(NONE)]
    by_cell: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(row["key"], []).append(row)
    good = 0
    for key, found in by_cell.items():
        best = min(found, key=lambda row: row["measured_ms"])
        chosen = min(found, key=lambda row: row["predicted_ms"])
        loss = chosen["measured_ms"] / best["measured_ms"] - 1
        good += loss <= 0.05
        report.row(
            "winners",
            cell=key,
            measured=best["codec"],
            predicted=chosen["codec"],
            behind=f"{loss:.1%}",
            gain=round(_of(found, str(NONE)) / chosen["measured_ms"], 2),
        )
    report.bar(UNCOMPRESSED_MEDIAN, statistics.median(plain))
    report.bar(UNCOMPRESSED_MAX, max(plain))
    report.bar(CODECS_MEDIAN, statistics.median(coded))
    report.bar(CODECS_P95, float(np.percentile(coded, 95)))
    report.bar(WINNER, good / len(by_cell))


def _of(rows: Sequence[Mapping[str, Any]], codec: str) -> float:
    return next(row["measured_ms"] for row in rows if row["codec"] == codec)


class JobOnBed:
    """The ranks of a running job on a testbed, which answer requests."""

    def __init__(self, testbed: Testbed, roles: Roles[int]) -> None:
        self.testbed = testbed
        self._roles = roles
        self._ranks = len(testbed.hosts)

    def ask(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the answers of all ranks, by rank."""
        for rank in range(self._ranks):
            self._roles.send(rank, {"do": what, **facts})
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self._ranks:
            found = self._roles.expect(what, _ANSWER_S)
            if found is None:
                raise RuntimeError(f"the ranks ended instead of an answer to {what}")
            answers[found[0]] = found[1]
        return [answers[rank] for rank in range(self._ranks)]

    def set_rate(self, mbit: float, slow: float = 1.0) -> None:
        """Set the rate of all hosts; `SLOW_HOST` has the share `slow`."""
        for host in self.testbed.hosts:
            share = slow if host.name == SLOW_HOST else 1.0
            self.testbed.set_rate(host.name, f"{mbit * share:g}mbit")

    def end(self) -> None:
        """End the ranks."""
        for rank in range(self._ranks):
            self._roles.send(rank, {"do": "end"})
        while self._roles.expect("the end", _ANSWER_S):
            pass


def job_roles(testbed: Testbed, module: str, ranks: int) -> Roles[int]:
    """Return the processes of a job of one rank a host, to be started."""
    argv = [sys.executable, "-m", module]
    root = WHERE["PYTHONPATH"]
    env = {"PYTHONPATH": f"{root}/src:{root}", "OMP_NUM_THREADS": "1", "HEADRACE_ADAPT": "off"}
    return Roles(dict(enumerate(rank_roles(testbed, argv, list(range(ranks)), env))))


def _job(report: Report, left: Sequence[Cell], kept: KeptRows, *, quick: bool) -> None:
    workers = left[0].workers
    bed = Bed(name=f"{workers}", racks=(workers,), host_mbit=FAST_MBIT, uplink_mbit=FAST_MBIT)
    with (
        Testbed.up(bed.spec, fallback=False) as testbed,
        job_roles(testbed, "benchmarks.compression.model_rank", workers) as roles,
    ):
        job = JobOnBed(testbed, roles)
        job.set_rate(max(RATES))
        latency = statistics.median(
            each["us"] for each in job.ask("latency", bytes_per_s=_bytes_per_s(max(RATES), testbed))
        )
        job.set_rate(REAL_MBIT)
        _report_exchanges(report, job, _bytes_per_s(REAL_MBIT, testbed), quick=quick)
        profiles: dict[tuple[str, str], CompressionProfile] = {}
        for cell in left:
            key = (cell.network, cell.compute)
            if key not in profiles:
                job.set_rate(FAST_MBIT)
                steps = 5 if quick else 15
                profiles[key] = _profile(job, *key, steps)
            share = SLOW_SHARE if cell.uneven else 1.0
            job.set_rate(cell.mbit, share)
            network = FormulaNetwork(
                scheme="ring",
                workers=workers,
                bandwidth_bytes_per_s=_bytes_per_s(cell.mbit * share, testbed),
                alpha_us=latency,
            )
            for codec in CODECS:
                name = f"{cell.key} {codec}"
                if name not in kept.rows:
                    kept.add(name, _row(job, cell, codec, profiles[key], network, quick=quick))
        job.end()


def _bytes_per_s(mbit: float, testbed: Testbed) -> float:
    """Return the payload's share of a rate."""
    return mbit / 8 * 1e6 * testbed.spec.payload_share * BOTH_WAYS


def _report_exchanges(report: Report, job: JobOnBed, bytes_per_s: float, *, quick: bool) -> None:
    """Give rows of Gloo's own exchanges, and of the same by messages."""
    answers = job.ask("exchanges", payload_bytes=_EXCHANGED_BYTES, repeats=5 if quick else 21)
    for name in answers[0]["ms"]:
        collective, carrier = name.split()
        times = [max(each) for each in zip(*(one["ms"][name] for one in answers), strict=True)]
        ranks = len(answers)
        least_ms = (ranks - 1) / ranks * _EXCHANGED_BYTES / bytes_per_s * 1e3
        report.row(
            f"exchanges of {_EXCHANGED_BYTES >> 10} KiB at {REAL_MBIT} Mbit/s",
            workers=ranks,
            collective=collective,
            by=carrier,
            measured_ms=round(statistics.median(times), 2),
            of_bytes_time=round(statistics.median(times) / least_ms, 2),
        )


def _profile(job: JobOnBed, network: str, compute: str, steps: int) -> CompressionProfile:
    answers = job.ask("profile", network=network, compute=compute, codecs=list(CODECS), steps=steps)
    text = {**answers[0]["head"], "provenance": answers[0]["provenance"]}
    path = job.testbed.record.directory / "profile.json"
    path.write_text(json.dumps(text))
    return CompressionProfile.load(path)


def _row(
    job: JobOnBed,
    cell: Cell,
    codec: str,
    profile: CompressionProfile,
    network: FormulaNetwork,
    *,
    quick: bool,
) -> dict[str, Any]:
    """Predict a cell's step, then measure it."""
    spec = CodecSpec.parse(codec)
    work = step_work(profile, spec, cell.workers, DURING if spec == NONE else AFTER)
    predicted = step_time(work, network)
    seconds = _QUICK_SECONDS if quick else _SECONDS
    steps = max(3 if quick else _LEAST, min(_MOST, round(seconds * 1e6 / predicted.total_us)))
    answers = job.ask("cell", network=cell.network, compute=cell.compute, codec=codec, steps=steps)
    # a step of all ranks is as long as that of the slowest
    times = [max(step) for step in zip(*(each["ms"] for each in answers), strict=True)]
    measured = statistics.median(times)
    return {
        "key": cell.key,
        "workers": cell.workers,
        "network": cell.network,
        "computing": cell.compute,
        "mbit": cell.mbit,
        "uneven": cell.uneven,
        "codec": codec,
        "codec_ms": round(predicted.codec_us / 1e3, 2),
        "sent_ms": round(predicted.communication_us / 1e3, 2),
        "predicted_ms": round(predicted.total_us / 1e3, 2),
        "measured_ms": round(measured, 2),
        "error": round(predicted.total_us / 1e3 / measured - 1, 4),
        "times": [round(each, 2) for each in times],
    }
