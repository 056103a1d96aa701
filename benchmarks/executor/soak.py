"""A hundred thousand collectives of random kind, size, type and sub-group: right, and no leaks.

Then fewer of them with two threads and four channels, beside messages whose receives are posted
while they arrive, over TCP and over shared memory.
"""

import json
import sys
import time
from collections import Counter

from benchmarks.executor.launch import ENVIRONMENT
from benchmarks.executor.soak_calls import GROUPS
from benchmarks.executor.turns import MIB
from benchmarks.harness import Report
from benchmarks.jobs import jobs_output
from headrace.testbed import Testbed, TestbedSpec

COLLECTIVES = 100_000
QUICK_COLLECTIVES = 3_000
WARM_UP = 50_000
"""Before them, until every connection of every group has used all of its buffers once."""
QUICK_WARM_UP = 6_000
SEED = 5
ORDER = (0, 0, 1, 1)
"""Two hosts of two ranks: some pairs share memory, others have the network."""

THREADED = {"HEADRACE_THREADS": "2", "HEADRACE_CHANNELS": "4"}
THREADED_TASK = {"collectives": 10_000, "messages": 20_000, "seed": SEED}
QUICK_THREADED_TASK = {"collectives": 1_000, "messages": 2_000, "seed": SEED}

HOST_RATE = "20gbit"
TIMEOUT_S = 1500.0

WRONG = "soak-wrong-results"
MEMORY = "soak-memory-growth-mib"
DESCRIPTORS = "soak-descriptors-left"
THREADS = "soak-threads-left"
THREADED_WRONG = "soak-threads-wrong"
THREADED_TIMEOUTS = "soak-threads-timeouts"


def bars() -> dict[str, str]:
    """Return the bars: wrong results; growth of the worst rank's resources."""
    ours = (WRONG, DESCRIPTORS, THREADS, THREADED_WRONG, THREADED_TIMEOUTS)
    return {**dict.fromkeys(ours, "<=0"), MEMORY: "<=4"}


def measure(report: Report, *, quick: bool) -> None:
    """Run the jobs, and give the bars."""
    measure_threads(report, quick=quick)
    count = QUICK_COLLECTIVES if quick else COLLECTIVES
    warm_up = QUICK_WARM_UP if quick else WARM_UP
    task = {"collectives": count, "warm_up": warm_up, "seed": SEED}
    spec = TestbedSpec.from_table(
        {"name": "soak", "defaults": {"host_rate": HOST_RATE}, "racks": [{"hosts": 2}]}
    )
    with Testbed.up(spec) as testbed:
        if testbed.is_fallback:
            report.note(f"soak: all on loopback, as {testbed.fallback_reason}")
        lines = jobs_output(
            testbed,
            [sys.executable, "-m", "benchmarks.executor.soak_rank", json.dumps(task)],
            ORDER,
            env=ENVIRONMENT,
            timeout_s=TIMEOUT_S,
        )
    done = [line for line in lines if line["event"] == "done"]
    done.sort(key=lambda line: line["rank"])
    kinds: Counter[str] = Counter()
    growths: list[float] = []
    for line in done:
        kinds.update(line["counts"])
        before, after = line["before"], line["after"]
        growths.append((after["resident_bytes"] - before["resident_bytes"]) / MIB)
        report.row(
            f"soak, {count} collectives after {task['warm_up']}, {len(GROUPS)} groups, two hosts",
            rank=line["rank"],
            took_part_in=sum(line["counts"].values()),
            wrong=line["wrong"],
            resident_mib_before=round(before["resident_bytes"] / MIB, 1),
            growth_mib=round(growths[-1], 2),
            anonymous_mib=round((after["anonymous_bytes"] - before["anonymous_bytes"]) / MIB, 2),
            in_use_mib=round((after["in_use_bytes"] - before["in_use_bytes"]) / MIB, 2),
            descriptors=f"{before['descriptors']} -> {after['descriptors']}",
            threads=f"{before['threads']} -> {after['threads']}",
            took_s=round(line["took_s"], 1),
        )
        for text in line["first_wrong"]:
            report.note(f"soak, rank {line['rank']}, wrong: {text}")
    for kind, calls in sorted(kinds.items()):
        report.row("soak, kinds", kind=kind, calls_of_all_ranks=calls)
    report.bar(WRONG, sum(line["wrong"] for line in done))
    report.bar(MEMORY, max(growths))
    for bar, what in ((DESCRIPTORS, "descriptors"), (THREADS, "threads")):
        report.bar(bar, max(line["after"][what] - line["before"][what] for line in done))
    report.note(
        "soak: memory is what is resident once the allocator has given back what is free, after "
        "the warm-up and at the end; anonymous: of that growth, the process's own, the rest is "
        "shared with other ranks or of files; in use: the growth of what the allocator has given "
        "out, which leaves out what it cannot give back because a page is used in part; ranks "
        "sleep at random; up to eight calls are pending"
    )


def measure_threads(report: Report, *, quick: bool) -> None:
    """Run the soak with threads over either transport, and give its bars."""
    task = QUICK_THREADED_TASK if quick else THREADED_TASK
    wrong = timeouts = 0
    with Testbed.up(
        TestbedSpec.from_table(
            {"name": "soak", "defaults": {"host_rate": HOST_RATE}, "racks": [{"hosts": 1}]}
        )
    ) as testbed:
        for transport, memory in (("TCP", "off"), ("shared memory", "on")):
            began = time.monotonic()
            lines = jobs_output(
                testbed,
                [sys.executable, "-m", "benchmarks.executor.soak_threads_rank", json.dumps(task)],
                (0,) * len(ORDER),
                env={**ENVIRONMENT, **THREADED, "HEADRACE_SHARED_MEMORY": memory},
                timeout_s=TIMEOUT_S,
            )
            done = [line for line in lines if line["event"] == "done"]
            errors = [line["failure"] for line in done if line["failure"]]
            wrong += sum(line["wrong"] for line in done)
            timeouts += len(errors)
            report.row(
                "soak, two threads and four channels, four ranks of one host",
                transport=transport,
                collectives=task["collectives"],
                messages=task["messages"],
                wrong=sum(line["wrong"] for line in done),
                ranks_that_ran_out_of_time=len(errors),
                took_s=round(time.monotonic() - began, 1),
            )
            for text in errors:
                report.note(f"soak, two threads, {transport}: {text}")
    report.bar(THREADED_WRONG, wrong)
    report.bar(THREADED_TIMEOUTS, timeouts)
