"""DDP's buckets behind the backward pass: communication that could be hidden, and that was."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.executor.launch import ENVIRONMENT
from benchmarks.executor.overlap_rank import ALONE, BACKENDS
from benchmarks.executor.schedule import Step, ideal_ends
from benchmarks.executor.turns import MIB
from benchmarks.harness import Report
from benchmarks.jobs import jobs_output
from headrace.testbed import Testbed, TestbedSpec

RATE = "1gbit"
ELEMENTS = 1 << 20
"""Of a bucket, float32."""

BAR = "ddp-overlap"
WRONG = "ddp-wrong-results"

Round = Sequence[Mapping[str, Mapping[str, Any]]]
"""Of every rank, its steps by mode: one without communication, and one a backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A training job and its network.

    Attributes
    ----------
    order : the host of every rank.
    buckets : of a step, each the gradients of one stage.
    rounds : number of steps; a quarter if quick.
    brief : True if it is part of a quick run.
    backward_s : of a stage, if its device is emulated.
    batch : rows of the input, if it is computed; else 0.
    """

    name: str
    hosts: int
    order: tuple[int, ...]
    buckets: int = 6
    rounds: int = 20
    brief: bool = True
    backward_s: float = 0.0
    batch: int = 0

    @property
    def in_bar(self) -> bool:
        """True if computing leaves the processors to communication, as an accelerator does."""
        return not self.batch

    @property
    def compute(self) -> str:
        """Its name in tables."""
        return "real" if self.batch else "emulated"


SETTINGS = (
    Setting(name="4 hosts, long", hosts=4, order=(0, 1, 2, 3), backward_s=0.08),
    Setting(name="4 hosts, short", hosts=4, order=(0, 1, 2, 3), backward_s=0.04, brief=False),
    # through memory six buckets take no longer than the spread of steps; and for 24 the medians of
    # 20 steps are still too rough
    Setting(
        name="1 host, 4 ranks",
        hosts=1,
        order=(0, 0, 0, 0),
        buckets=24,
        rounds=60,
        backward_s=0.03,
    ),
    Setting(name="2 hosts", hosts=2, order=(0, 1), batch=512),
)


def bars() -> dict[str, str]:
    """Return the bars: the share hidden in the worst setting; rounds with wrong gradients."""
    return {BAR: ">=0.8", WRONG: "<=0"}


def spec(hosts: int) -> TestbedSpec:
    """Return hosts on one bridge."""
    return TestbedSpec.from_table(
        {"name": f"ddp-{hosts}", "defaults": {"host_rate": RATE}, "racks": [{"hosts": hosts}]}
    )


def measure(report: Report, *, quick: bool) -> None:
    """Run all settings, and give the bars."""
    shares: list[float] = []
    wrong = 0
    for number, setting in enumerate(SETTINGS):
        if quick and not setting.brief:
            continue
        lines = _lines(setting, rounds=setting.rounds // 4 if quick else setting.rounds)
        wrong += sum(line["wrong"] for line in lines)
        ranks = range(len(setting.order))
        by_rank = [[line["steps"] for line in lines if line["rank"] == rank] for rank in ranks]
        rounds = list(zip(*by_rank, strict=True))
        for backend in BACKENDS:
            step = typical(rounds, backend)
            if backend == "headrace":
                if setting.in_bar:
                    shares.append(step.share)
                _show_buckets(report, setting, rounds)
            report.row(
                f"DDP, buckets of {ELEMENTS * 4 // MIB} MiB, links of {RATE}",
                network=setting.name,
                compute=setting.compute,
                backend=backend,
                backward_ms=_ms(step.backward),
                comm_ms=_ms(sum(step.alone)),
                ideal_ms=_ms(step.ideal),
                measured_ms=_ms(step.measured),
                can_hide_ms=_ms(step.can_hide),
                hidden_ms=_ms(step.hidden),
                share=round(step.share, 3),
                idle=round(idle_share(rounds, backend), 3),
            )
        report.row(
            "DDP, steps that send nothing",
            network=setting.name,
            compute=setting.compute,
            buckets=setting.buckets,
            spread_ms=_ms(spread(rounds)),
        )
        report.attach(f"ddp-{number}-trace", trace(rounds[-1]))
    report.bar(BAR, min(shares))
    report.bar(WRONG, wrong)
    report.note(
        "DDP: medians over steps of the whole job: a bucket is ready when it is at all ranks, "
        "a step has ended when it has at all. Backward: a step that sends nothing (spread: the "
        "interquartile range of these); comm: the same buckets' allreduces while nothing is "
        "computed, from when the last rank began; ideal: every bucket leaves when it is "
        "ready and the one before it is through. Can hide: backward and comm, less ideal; hidden: "
        "the same, less measured; idle: the share of the processors' time in which they did "
        "nothing. Emulated computing sleeps. The bar is that of all settings with emulated "
        "computing: what is really computed wants the same processors as communication"
    )


def timeline(steps: Round, mode: str) -> tuple[float, list[float], list[float], float]:
    """Return one step of the job: its beginning, its buckets ready and ended, its end.

    All but the first in seconds from the beginning, which is that of the last rank.
    """
    began = max(step[mode]["began"] for step in steps)
    ready = [max(each) - began for each in zip(*(s[mode]["ready"] for s in steps), strict=True)]
    ended = [max(each) - began for each in zip(*(s[mode]["ended"] for s in steps), strict=True)]
    return began, ready, ended, max(step[mode]["end"] for step in steps) - began


def typical(rounds: Sequence[Round], backend: str) -> Step:
    """Return the job's median step."""
    alone = [timeline(steps, ALONE) for steps in rounds]
    ready = _medians([ready for _, ready, _, _ in alone])
    probes = [
        max(ended for _, ended in probe) - max(began for began, _ in probe)
        for steps in rounds
        for probe in zip(*(step[backend]["allreduces"] for step in steps), strict=True)
    ]
    return Step(
        ready=ready,
        backward=statistics.median(end for _, _, _, end in alone),
        alone=[statistics.median(probes)] * len(ready),
        measured=statistics.median(timeline(steps, backend)[-1] for steps in rounds),
    )


def idle_share(rounds: Sequence[Round], mode: str) -> float:
    """Return the median share of the processors' time in which they were idle."""
    return statistics.median(max(step[mode]["idle"] for step in steps) for steps in rounds)


def spread(rounds: Sequence[Round]) -> float:
    """Return the interquartile range, in seconds, of the steps without communication."""
    ends = [timeline(steps, ALONE)[-1] for steps in rounds]
    first, _, third = statistics.quantiles(ends, n=4, method="inclusive")
    return third - first


def trace(steps: Round) -> dict[str, Any]:
    """Return one round's steps of all ranks in the format of Chrome's trace viewer."""
    events: list[dict[str, Any]] = []
    origin = min(step["began"] for modes in steps for step in modes.values())
    for rank, modes in enumerate(steps):
        for mode, step in modes.items():
            start = step["began"] - origin
            events.append(_event(rank, "backward pass", mode, start, step["end"] - step["began"]))
            for bucket, (ready, ended) in enumerate(zip(step["ready"], step["ended"], strict=True)):
                name = f"allreduce of bucket {bucket}"
                events.append(_event(rank, name, mode, ready - origin, ended - ready))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(rank: int, name: str, mode: str, start_s: float, took_s: float) -> dict[str, Any]:
    row = 0 if name == "backward pass" else 1 + int(name.rsplit(" ", 1)[1])
    place = {"ph": "X", "pid": rank, "tid": row, "cat": mode}
    return {**place, "name": f"{name} ({mode})", "ts": start_s * 1e6, "dur": took_s * 1e6}


def _show_buckets(report: Report, setting: Setting, rounds: Sequence[Round]) -> None:
    """Show the profile of the typical step, bucket by bucket."""
    step = typical(rounds, "headrace")
    steps = [timeline(each, "headrace") for each in rounds]
    ready = _medians([ready for _, ready, _, _ in steps])
    ended = _medians([ended for _, _, ended, _ in steps])
    ideal = ideal_ends(step.ready, step.alone)
    for bucket, moments in enumerate(zip(ready, ended, ideal, strict=True)):
        report.row(
            "DDP, buckets of a step, from its backward pass on (headrace)",
            network=setting.name,
            compute=setting.compute,
            bucket=bucket,
            ready_ms=_ms(moments[0]),
            through_ms=_ms(moments[1]),
            ideal_ms=_ms(moments[2]),
            backward_ended_ms=_ms(step.backward),
        )


def _lines(setting: Setting, rounds: int) -> list[dict[str, Any]]:
    task = {
        "stages": setting.buckets,
        "elements": ELEMENTS,
        "forward_s": setting.backward_s / 8,  # affects no measured figure
        "backward_s": setting.backward_s,
        "batch": setting.batch,
        "rounds": rounds,
    }
    with Testbed.up(spec(setting.hosts), fallback=False) as testbed:
        return jobs_output(
            testbed,
            [sys.executable, "-m", "benchmarks.executor.overlap_rank", json.dumps(task)],
            setting.order,
            env=ENVIRONMENT,
        )


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
