"""Steps with rows from caches by lookahead, skew, data set, model, batch and trainers.

The network and the emulated device are those of the section `steps`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.embeddings.accesses import PAPER_CACHES_MB
from benchmarks.embeddings.bed import MBIT, SLOW_MBIT
from benchmarks.embeddings.timing import DENSE, Network, TimedJob, Turns, timed_job
from benchmarks.embeddings.workload import KAGGLE, WINDOW, Workload
from benchmarks.harness import Report
from benchmarks.kept import KeptRows

TARGETED = "targeted"
SHARE = 8_192
"""Examples of a trainer's part of a batch."""

_TURNS = Turns(rounds=5, steps=5)
_PAPER_STEPS_MS = {5: 535.6, 10: 289.3, 50: 85.7, 100: 67.3}
"""The paper's steps by lookahead (Table 5.3): eight V100s at 10 Gbit/s."""

_PAPER_OVER_TORCHREC = {"avazu": "1.9 to 2.4", "terabyte": "1.9 to 2.4", "DeepFM": "3.7"}
"""The paper's speed over TorchRec (Figures 5.9 and 5.11): eight V100s at 10 Gbit/s."""

_PAPER_SCALING = 1.4
"""The paper's scaling (Figure 5.15): examples a second of 32 trainers over those of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of a table.

    Attributes
    ----------
    table : its title.
    name : of the row, by its column.
    network : trainers, rates, and what they train on.
    lookahead : in batches.
    ratio : of the device's time to the measured fetch and write-back of pooled rows.
    model : whose dense part is averaged.
    paper : the paper's figure, by its column.
    """

    table: str
    name: Mapping[str, str | int | float]
    network: Network
    lookahead: int
    ratio: float = 0.5
    model: str = "DLRM"
    paper: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The table and the row's name."""
        return f"{self.table}: {self.name}"


def cells() -> Iterator[Cell]:
    """Yield the cells of all tables."""
    two = Network(trainers=2, mbit=MBIT)
    for lookahead, paper_ms in _PAPER_STEPS_MS.items():
        yield Cell(
            table=f"steps by lookahead: {two}",
            name={"lookahead": lookahead},
            network=two,
            lookahead=lookahead,
            paper={"paper_cache_mb": PAPER_CACHES_MB[lookahead], "paper_step_ms": paper_ms},
        )
    for alpha in ("1", "1.05", "1.5", "2", "3", "5"):
        workload = Workload(skew=f"zipf:{alpha}")
        yield Cell(
            table=f"steps by skew: {two}",
            name={"skew": workload.skew},
            network=Network(trainers=2, mbit=MBIT, workload=workload),
            lookahead=workload.window,
        )
    for name, dims in (("avazu", (48,)), ("terabyte", (16,))):
        workload = Workload(clicks_of=name, dims=dims)
        yield Cell(
            table=f"steps by data set: 2 trainers, {MBIT} Mbit/s",
            name={"data_set": name, "dimension": dims[0]},
            network=Network(trainers=2, mbit=MBIT, workload=workload),
            lookahead=workload.window,
            ratio=1.0,
            paper={"paper_over_torchrec": _PAPER_OVER_TORCHREC[name]},
        )
    for name, dims in (("DeepFM", (48, 1)), ("DeepFM, dense linear terms", (48,))):
        yield Cell(
            table=f"steps of DeepFM: 2 trainers, {MBIT} Mbit/s",
            name={"linear_terms": "rows of dimension 1" if len(dims) > 1 else "a dense layer"},
            network=Network(trainers=2, mbit=MBIT, workload=Workload(dims=dims)),
            lookahead=KAGGLE.window,
            ratio=1.0,
            model=name,
            paper={} if len(dims) > 1 else {"paper_over_torchrec": _PAPER_OVER_TORCHREC["DeepFM"]},
        )
    yield from _scaling()


def _scaling() -> Iterator[Cell]:
    """Yield cells of more trainers, each with as many examples, and of larger batches."""
    for trainers in (2, 4, 8):
        workload = Workload(batch=trainers * SHARE)
        yield Cell(
            table=f"steps by trainers, {SHARE} examples each: {SLOW_MBIT} Mbit/s, dimension 48",
            name={"trainers": trainers, "batch": workload.batch},
            network=Network(trainers=trainers, mbit=SLOW_MBIT, workload=workload),
            lookahead=workload.window,
        )
    for batch in (8_192, 16_384, 32_768, 65_536, 131_072):
        workload = Workload(batch=batch)
        yield Cell(
            table=f"steps by batch: 4 trainers, {MBIT} Mbit/s, dimension 48",
            name={"batch": batch},
            network=Network(trainers=4, mbit=MBIT, workload=workload),
            lookahead=workload.window,
        )


def bars() -> dict[str, str]:
    """Return no bars: the section `steps` has them."""
    return {}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Measure every cell."""
    kept = KeptRows("embeddings", "workloads", quick=quick, folder=report.state_folder)
    for cell in cells():
        if cell.key not in kept.rows:
            kept.add(cell.key, _measured(cell))
        report.row(cell.table, **cell.name, **kept.rows[cell.key], **cell.paper)
    kept.clear()
    report.note(
        "the paper's tables and figures: eight V100s at 10 Gbit/s, DLRM's and DeepFM's real time; "
        "here the device computes for a multiple of the pooled rows' exchange on each network"
    )
    report.note(
        f"steps by batch and by trainers: decisions look at {WINDOW} examples, whatever the batch; "
        f"the paper has {_PAPER_SCALING} times the examples a second with 32 trainers in place "
        "of 16. All hosts share this machine's processors; idle: share of their time"
    )


def _measured(cell: Cell) -> dict[str, float]:
    """Return what a cell's steps take, with the pooled rival and the ideal beside them."""
    network = cell.network
    with timed_job(network, [TARGETED], cell.lookahead, _TURNS) as job:
        rivals = [(rival, job.fastest_backend) for rival in ("pooled", "ideal")]
        times = job.times(cell.ratio, _TURNS, DENSE[cell.model], [*rivals, (TARGETED, "headrace")])
    pooled, ideal = (f"{rival}, {backend}" for rival, backend in rivals)
    return {
        "device_ms": 1e3 * cell.ratio * job.pooled_s,
        "step_ms": times.median_ms(TARGETED),
        "examples_per_s": 1e3 * network.workload.batch / times.median_ms(TARGETED),
        "over_pooled": times.over(pooled, TARGETED),
        "most_over_pooled": times.over(pooled, ideal),
        "of_ideal": 1 / times.over(ideal, TARGETED),
        "idle": times.idle[TARGETED],
        **_rows(job, times.counts[TARGETED]),
    }


def _rows(job: TimedJob, counts: Mapping[str, float]) -> dict[str, float]:
    """Return rows of a step, of all trainers together."""
    batches, waited_s = counts["batches"], counts["batch_wait_s"] + counts["fetch_wait_s"]
    return {
        "fetched_rows": counts["fetched_rows"] / batches,
        "moves_next_needs": counts["critical_rows"] / batches,
        "fetch_wait_ms": 1e3 * waited_s / batches / job.network.trainers,
        "sent_mb": counts["wire_bytes"] / batches / 1e6,
    }
