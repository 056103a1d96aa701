"""Training steps with rows from caches beside those of the rivals, on an emulated device.

The device computes by sleeping, for a multiple of the measured time of the pooled rows' fetch and
write-back. Every design and rival moves its rows for real.
"""

from contextlib import nullcontext
from dataclasses import dataclass

from benchmarks.embeddings.bed import MBIT, SLOW_MBIT
from benchmarks.embeddings.timing import BACKENDS, DENSE, Network, TimedJob, Times, Turns, timed_job
from benchmarks.embeddings.workload import Workload
from benchmarks.harness import Report
from benchmarks.kept import KeptRows
from benchmarks.output import Output

LOOKAHEAD = 100
TARGETED = "targeted"
RATIOS = (0.5, 1.0, 2.0)

_OVER_POOLED = {"0.5": ">=1.7", "1": ">=1.5"}
_OF_IDEAL = {"0.5": "<=1.20", "1": "<=1.12", "2": "<=1.07"}
_OVER_DISTINCT = ">=1.08"

NETWORKS = {
    "": Network(trainers=2, mbit=MBIT),
    "-4-trainers": Network(trainers=4, mbit=MBIT),
    f"-{SLOW_MBIT}-mbit": Network(trainers=2, mbit=SLOW_MBIT),
    f"-4-trainers-{SLOW_MBIT}-mbit": Network(trainers=4, mbit=SLOW_MBIT),
}
"""By the suffix of their bars' names; a quick run has the first one."""

WIDE = Network(trainers=2, mbit=MBIT, workload=Workload(dims=(128,)))


def bars() -> dict[str, str]:
    """Return the bars."""
    declared: dict[str, str] = {}
    for suffix in NETWORKS:
        for ratio, bound in _OVER_POOLED.items():
            declared[f"dlrm-over-pooled-{ratio}{suffix}"] = bound
        for ratio, bound in _OF_IDEAL.items():
            declared[f"of-ideal-{ratio}{suffix}"] = bound
        declared[f"over-distinct-0.5{suffix}"] = _OVER_DISTINCT
    return declared | {
        "over-distinct-0.5-dim-128": _OVER_DISTINCT,
        "wide-and-deep-over-pooled-1": ">=1.6",
    }


NOT_IN_QUICK = frozenset(
    {
        *(name for name in bars() if not name.startswith(("dlrm-over", "of-ideal"))),
        *(name for name in bars() if name.endswith(tuple(filter(None, NETWORKS)))),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """Steps that are timed by turns: of a model, with a device that is slower or faster.

    Attributes
    ----------
    ratio : the device's time over that of the pooled rows' exchange.
    rivals : beside the ideal and the design that is compared with them.
    """

    model: str
    ratio: float
    rivals: tuple[str, ...]


def _cells(network: Network, *, quick: bool) -> list[_Cell]:
    """Return a network's cells; a quick run has the rival with bars that gate."""
    if network is WIDE:
        return [_Cell(model="DLRM", ratio=0.5, rivals=("distinct",))]
    both = ("pooled", "distinct")
    cells = [
        _Cell(model="DLRM", ratio=ratio, rivals=both if ratio < 2 and not quick else both[:1])
        for ratio in RATIOS
    ]
    if network is NETWORKS[""] and not quick:
        cells.append(_Cell(model="Wide & Deep", ratio=1.0, rivals=("pooled",)))
    return cells


def measure(report: Report, *, quick: bool) -> None:
    """Measure each network."""
    turns = Turns(rounds=3, steps=2) if quick else Turns(rounds=7, steps=6)
    kept = KeptRows(
        "embeddings", "steps", quick=quick, folder=report.state_folder, quiet=("rows", "notes")
    )
    if kept.rows:
        report.note(f"cells from an interrupted run: {', '.join(kept.rows)}")
    # those at 200 Mbit/s, which take longest, are the last
    networks = {"": NETWORKS[""]} if quick else {"-dim-128": WIDE} | NETWORKS
    for suffix, network in networks.items():
        cells = {
            f"{suffix}/{cell.model}/{cell.ratio:g}": cell for cell in _cells(network, quick=quick)
        }
        left = cells.keys() - kept.rows
        with timed_job(network, [TARGETED], LOOKAHEAD, turns) if left else nullcontext() as job:
            for name, cell in cells.items():
                if job is not None and name in left:
                    kept.add(name, _measured(job, cell, suffix, turns, quick=quick).columns)
                output = Output(**kept.rows[name])
                output.add_rows_to(report)
                for bar, figure in output.figures:
                    report.bar(bar, figure)
    kept.clear()
    report.note(
        "of-ideal: over a step without rows, the device's time and the average of the dense part's "
        "gradients; rivals and ideal on the faster of Gloo and headrace. idle: share of the "
        "processors' time, which all hosts of the testbed share"
    )


def _measured(job: TimedJob, cell: _Cell, suffix: str, turns: Turns, *, quick: bool) -> Output:
    """Return rows and figures of a cell; a quick run has the faster backend alone."""
    backends = [job.fastest_backend] if quick else BACKENDS
    timed = [(rival, backend) for rival in (*cell.rivals, "ideal") for backend in backends]
    variants = [*timed, (TARGETED, "headrace")]
    times = job.times(cell.ratio, turns, DENSE[cell.model], variants)
    output = Output()
    for backend, seconds in job.exchange_s.items():
        output.row(
            "pooled rows there and back, without lookups",
            network=str(job.network),
            device_over_pooled=cell.ratio,
            backend=backend,
            ms=1e3 * seconds,
        )
    _add_rows(output, job, cell, times)
    model = cell.model.lower().replace(" & ", "-and-")
    figures: dict[str, float] = {}
    for rival in cell.rivals:
        of_model = "" if rival == "distinct" else f"{model}-"
        figures[f"{of_model}over-{rival}-{cell.ratio:g}{suffix}"] = _over(times, rival)
    if cell.model == "DLRM":
        figures[f"of-ideal-{cell.ratio:g}{suffix}"] = 1 / _over(times, "ideal")
    declared = bars()  # some cells are rows alone
    output.figures += [(name, figure) for name, figure in figures.items() if name in declared]
    return output


def _over(times: Times, rival: str) -> float:
    """Return the time of a rival on the faster backend over the design's."""
    names = [name for name in times.rounds if name.startswith(f"{rival}, ")]
    return times.over(times.fastest(names), TARGETED)


def _add_rows(output: Output, job: TimedJob, cell: _Cell, times: Times) -> None:
    for variant in times.rounds:
        output.row(
            f"steps of {cell.model}, {job.network}, emulated device",
            device_over_pooled=cell.ratio,
            device_ms=1e3 * cell.ratio * job.pooled_s,
            variant=variant,
            step_ms=times.median_ms(variant),
            over_targeted=times.over(variant, TARGETED),
            sent_mb=times.counts[variant]["wire_bytes"] / times.counts[variant]["batches"] / 1e6,
            idle=times.idle[variant],
        )
    counts = times.counts[TARGETED]
    batches = counts["batches"] * job.network.trainers
    output.row(
        f"a trainer's step of {cell.model}, targeted, {job.network}",
        device_over_pooled=cell.ratio,
        fetch_wait_ms=1e3 * (counts["batch_wait_s"] + counts["fetch_wait_s"]) / batches,
        critical_ms=1e3 * (counts["exchange_wait_s"] + counts["update_s"]) / batches,
        delayed_wait_ms=1e3 * counts["delayed_wait_s"] / batches,
        delayed_ms=1e3 * (counts["delayed_s"] + counts["write_back_s"]) / batches,
        critical_rows=counts["critical_rows"] / batches,
        delayed_rows=counts["delayed_rows"] / batches,
        fetched_rows=counts["fetched_rows"] / batches,
        evicted_rows=counts["evicted_rows"] / batches,
    )
