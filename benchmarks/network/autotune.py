"""Autotune follows a network that changes twice and comes back twice: PLink 5.6, figure 10.

Eight hosts in four racks, shuffled. At a step that the job does not know, one host is cut to 40% of
its rate, and later restored; at a random step a rack's uplink is, and later restored. Static plans,
made for every condition with the true rates, take a few steps in the same processes under every
condition, between two steps of the job that adapts.
"""

import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE, jobs_output
from benchmarks.network.launch import network
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.locality import RankGroups
from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.rates import parse_rate
from headrace.topology import Topology

BED = Bed(name="8-hosts", racks=(2, 2, 2, 2), host_mbit=160, uplink_mbit=160, seed=4)
HOST, RACK = "host1", "rack1"
CUT = 0.4
SEED = 20
COMPUTE_S = 0.06
WITHIN = 10
"""Steps after a change by which the job has to have adapted."""

PAPER_GAIN = 1.27
BASE, SLOW_HOST, SLOW_UPLINK = "base", "slow host", "slow uplink"
OF_BEST = 0.9
_WINDOW = 5
_AFTERWARDS = 4
"""Steps between a comparison and the next change, so that they are not confused."""

STEPS_BAR, OF_BEST_BAR = "autotune-steps-to-recover", "autotune-of-best-static"
IMBALANCE, LOST, WRONG, CHANGED = (
    "autotune-final-imbalance",
    "autotune-collectives-lost",
    "autotune-wrong-results",
    "autotune-bits-changed-within-a-plan",
)


def bars() -> dict[str, str]:
    """Return the bars, of the worst of four changes where there are several."""
    return {
        STEPS_BAR: f"<={WITHIN}",
        OF_BEST_BAR: f">={OF_BEST}",
        IMBALANCE: "<=1.05",
        LOST: "<=0",
        WRONG: "<=0",
        CHANGED: "<=0",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From step `at` on the network is in `condition`, `target` having `share` of its rate."""

    at: int
    condition: str
    target: str
    share: float


def changes(phase: int, seed: int = SEED) -> tuple[tuple[Change, ...], int]:
    """Return the changes and the number of steps; the third change is at a random step."""
    first, back = phase, 2 * phase
    drawn = 3 * phase + random.Random(seed).randrange(max(1, phase // 2))
    return (
        Change(at=first, condition=SLOW_HOST, target=HOST, share=CUT),
        Change(at=back, condition=BASE, target=HOST, share=1.0),
        Change(at=drawn, condition=SLOW_UPLINK, target=RACK, share=CUT),
        Change(at=drawn + phase, condition=BASE, target=RACK, share=1.0),
    ), drawn + 2 * phase


def compared_at(plan: Sequence[Change], steps: int) -> dict[str, list[str]]:
    """Return the steps before which static plans are run, and which: late in every condition."""
    ends = [change.at for change in plan[1:]] + [steps]
    return {
        str(end - _AFTERWARDS): sorted({BASE, change.condition})
        for change, end in zip(plan, ends, strict=True)
    }


def measure(report: Report, *, quick: bool) -> None:
    """Run the job, add the timeline and a row a change, give the bars."""
    size = 3 << (19 if quick else 20)
    plan, steps = changes(20 if quick else 32)
    with Testbed.up(BED.spec, fallback=False) as testbed:
        folder = testbed.record.directory
        specs = {
            BASE: BED.spec,
            SLOW_HOST: BED.spec.with_rate(HOST, parse_rate(f"{BED.host_mbit * CUT}mbit")),
            SLOW_UPLINK: BED.spec.with_rate(RACK, parse_rate(f"{BED.uplink_mbit * CUT}mbit")),
        }
        books = _books(folder, specs, network(testbed, BED, quick=quick), size)
        task = {
            "buckets": [size // 3] * 3,
            "compute_s": COMPUTE_S,
            "books": books,
            "steps": steps,
            "static": compared_at(plan, steps),
        }
        conditions = _Conditions(testbed, specs, plan)
        log = folder / "adapt.log"
        lines = jobs_output(
            testbed,
            [sys.executable, "-m", "benchmarks.network.autotune_rank", json.dumps(task)],
            BED.order,
            env={**WHERE, "HEADRACE_ADAPT_LOG": str(log), "OMP_NUM_THREADS": "1"},
            on_event=conditions.on_event,
        )
        records = _records(log)
    _timeline(report, lines, records, plan, size)
    _recovery(report, lines, plan, steps)
    _integrity(report, lines)
    if quick:
        report.note("quick: the job that adapts begins with the true network in place of a survey")
    report.note(
        f"autotune: computing is emulated (sleeps {COMPUTE_S * 1e3:.0f} ms a step); host "
        f"'{HOST}' and the uplink of '{RACK}' cut to {CUT:.0%}; the uplink at step "
        f"{plan[2].at}, drawn with seed {SEED}; best static: the faster of two books, one planned "
        "with the true rates of the condition and one with those of the beginning (unadapted); "
        "gain: over the latter"
    )


class _Conditions:
    """Changes the rates when rank 0 reports the end of the step before a change."""

    def __init__(
        self, testbed: Testbed, specs: dict[str, TestbedSpec], plan: Sequence[Change]
    ) -> None:
        self._testbed = testbed
        self._specs = specs
        self._at = {change.at: change.condition for change in plan}

    def on_event(self, line: dict[str, Any]) -> None:
        if line["event"] == "step" and line["number"] + 1 in self._at:
            self._apply(self._at[line["number"] + 1])

    def _apply(self, condition: str) -> None:
        spec = self._specs[condition]
        self._testbed.set_rate(HOST, spec.host_named[HOST].bytes_per_s)
        rack = next(rack for rack in spec.racks if rack.name == RACK)
        self._testbed.set_rate(RACK, rack.bytes_per_s)


def _books(
    folder: Path, specs: dict[str, TestbedSpec], start: tuple[Topology, RankGroups], size: int
) -> dict[str, str]:
    """Plan the job's first book for `start`, and the static ones for the true networks."""
    given = {"adaptive": start}
    given |= {name: (spec.topology(BED.order), BED.groups) for name, spec in specs.items()}
    paths: dict[str, str] = {}
    for name, (topology, groups) in given.items():
        book = build_book(
            topology, groups=groups, collectives=[Collective.ALLREDUCE], sizes=[4096, size // 3]
        )
        paths[name] = str(folder / f"{name.replace(' ', '-')}.book")
        book.save(paths[name])
    return paths


def _timeline(
    report: Report,
    lines: Sequence[dict[str, Any]],
    records: Sequence[dict[str, Any]],
    plan: Sequence[Change],
    size: int,
) -> None:
    began = 0.0
    for line in (line for line in lines if line["event"] == "step"):
        number = line["number"]
        changed = [f"{c.target} to {c.share:.0%}" for c in plan if c.at == number]
        logged = [_record_text(each) for each in records if began < each["at"] <= line["at"]]
        began = line["at"]
        report.row(
            "autotune, step by step",
            step=number,
            ms=round(line["ms"], 1),
            mb_per_s=round(size / line["ms"] / 1e3, 2),
            plan="/".join(map(str, sorted(set(line["epochs"])))),
            network="; ".join(changed),
            autotune="; ".join(logged),
        )


def _records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _record_text(record: dict[str, Any]) -> str:
    found = record.get("found") or {}
    named = [str(record[key]) for key in ("why", "phase", "action") if record.get(key)]
    took = [f"{record['took_s']:.1f} s"] if "took_s" in record else []
    ports = [f"{port} x{factor:.2f}" for port, factor in found.items()]
    times = [
        f"{name[:-2]} {record[name] * 1e3:.0f} ms"
        for name in ("before_s", "after_s", "step_s", "best_s", "expected_s")
        if record.get(name)
    ]
    return " ".join([record["event"], *named, *took, *ports, *times])


def _recovery(
    report: Report, lines: Sequence[dict[str, Any]], plan: Sequence[Change], steps: int
) -> None:
    times = [line["ms"] for line in lines if line["event"] == "step"]
    ends = [change.at for change in plan[1:]] + [steps]
    worst_steps, worst_share = 0, float("inf")
    for change, end in zip(plan, ends, strict=True):
        of = {
            line["book"]: statistics.median(line["ms"])
            for line in lines
            if line["event"] == "static" and line["before"] == end - _AFTERWARDS
        }
        best_ms = min(of.values())
        taken = recovered_in(times[change.at : end], best_ms)
        settled = statistics.median(times[change.at + WITHIN : end - _AFTERWARDS])
        share = best_ms / settled
        worst_steps = max(worst_steps, end - change.at if taken is None else taken)
        worst_share = min(worst_share, share)
        report.row(
            "autotune against static plans, ms a step",
            at_step=change.at,
            network=f"{change.target} to {change.share:.0%}",
            before=round(statistics.median(times[change.at - _WINDOW : change.at]), 1),
            first=round(statistics.median(times[change.at : change.at + 2]), 1),
            settled=round(settled, 1),
            best_static=round(best_ms, 1),
            unadapted=round(of[BASE], 1),
            steps=taken,
            of_best=round(share, 3),
            gain=round(of[BASE] / settled, 2),
            paper=PAPER_GAIN if change.condition == SLOW_HOST else None,
        )
    report.bar(STEPS_BAR, worst_steps)
    report.bar(OF_BEST_BAR, worst_share)


def recovered_in(times_ms: Sequence[float], best_ms: float) -> int | None:
    """Return the number of steps until the throughput is 90% of the best; None: never.

    The throughput at a step is that of the median of five steps from it.
    """
    for lag in range(len(times_ms) - _WINDOW + 1):
        if best_ms >= OF_BEST * statistics.median(times_ms[lag : lag + _WINDOW]):
            return lag
    return None


def _integrity(report: Report, lines: Sequence[dict[str, Any]]) -> None:
    """Check that all ranks made the same calls, and that all ended, right and with equal bits."""
    ranks = [line for line in lines if line["event"] == "done"]
    if len(ranks) != BED.ranks:
        raise RuntimeError(f"{len(ranks)} of {BED.ranks} ranks reported")
    most = max(line["calls"] for line in ranks)
    lost = sum(most - min(line["calls"], line["finished"]) for line in ranks)
    epochs = {key for line in ranks for key in line["digests"]}
    differ = sum(len({line["digests"].get(key) for line in ranks}) > 1 for key in epochs)
    sent = [line["sent"] for line in ranks]
    report.row(
        "autotune: collectives",
        ranks=len(ranks),
        calls_each=most,
        lost=lost,
        wrong=sum(line["wrong"] for line in ranks),
        bits_changed_within_a_plan=sum(line["changed"] for line in ranks),
        results_that_ranks_differ_in=differ,
        plans=len({key.split(".")[0] for key in epochs}),
        final_imbalance=round(max(sent) / min(sent), 4),
    )
    report.bar(IMBALANCE, max(sent) / min(sent))
    report.bar(LOST, lost)
    report.bar(WRONG, sum(line["wrong"] for line in ranks) + differ)
    report.bar(CHANGED, sum(line["changed"] for line in ranks))
