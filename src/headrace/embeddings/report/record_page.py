"""The page of an embedding record: parts of a step (Figure 5.3), stalls, batches ahead, rates."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.cli.show_record import (
    CHANGE_COLUMNS,
    MOVED_COLUMNS,
    PART_COLUMNS,
    WORK_COLUMNS,
    change_cells,
    moved_rows_cells,
    part_cells,
    record_facts,
    work_cells,
)
from headrace.embeddings.run.job.record import EmbeddingRecord
from headrace.embeddings.run.step_times import STALLS, STEP_PARTS
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_RATES = {
    "fetched": "fetched_bytes",
    "exchanged before the next step": "critical_bytes",
    "exchanged beside it": "delayed_bytes",
    "written back": "evicted_bytes",
    "committed": "dirty_bytes",
}


def record_page(record: EmbeddingRecord, source: str) -> Page:
    """Return the page of a record, which was read from `source`."""
    page = Page("Steps of an embedding job", f"{source}: {record.description}")
    page.facts(list(record_facts(record).items()))
    page.heading("Parts of a step, by trainer")
    page.figure(_parts_figure(record))
    page.note(
        "Means of steady steps: a fourth of the samples is left out, in which caches fill. "
        "Without rows: computing and the average of the dense part, computed from these steps; "
        "the ideal job, where one is known, was measured."
    )
    page.table(PART_COLUMNS, part_cells(record))
    page.heading("Stalls over batches")
    page.figure(_stalls_figure(record))
    page.heading("Batches ahead")
    page.figure(_ahead_figure(record))
    page.heading("Rates of all trainers, and commits")
    page.figure(_rates_figure(record))
    page.table(MOVED_COLUMNS, moved_rows_cells(record))
    page.heading("Work of all processes")
    page.table(WORK_COLUMNS, work_cells(record))
    page.heading("Changes while the job ran")
    page.table(CHANGE_COLUMNS, change_cells(record))
    page.note(
        "Lookahead, prefetch and the trainers' shares follow the job, from a batch that is decided "
        "on. " + ("" if record.changes else "Here they were not changed.")
    )
    return page


def _parts_figure(record: EmbeddingRecord) -> "go.Figure":
    """Draw a bar for each trainer, of the parts of its steps (Figure 5.3)."""
    figure = empty_figure()
    totals = [
        record.sums("trainer", trainer, first=record.steady) for trainer in range(record.trainers)
    ]
    names = [f"trainer {trainer}" for trainer in range(record.trainers)]
    for part, text in STEP_PARTS.items():
        milliseconds = [1e3 * getattr(own, part) / max(own.batches, 1) for own in totals]
        figure.add_bar(x=names, y=milliseconds, name=text)
    figure.add_bar(x=["without rows"], y=[1e3 * record.without_rows_s], name="without rows")
    if record.ideal_step_s > 0:
        figure.add_bar(x=["ideal job"], y=[1e3 * record.ideal_step_s], name="ideal job")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="ms of a step")
    return figure


def _by_sample(record: EmbeddingRecord, kind: str, name: str) -> NDArray[np.float64]:
    """Return a sum over all processes of a kind, for each sample."""
    columns = record.tables[kind]
    return np.bincount(
        columns["sample"], columns[name].astype(np.float64), minlength=record.samples
    ).astype(np.float64)


def _batch_numbers(record: EmbeddingRecord) -> NDArray[np.float64]:
    """Return the batches of the job at the end of each sample, by the trainer with most of them."""
    columns = record.tables["trainer"]
    batches = np.zeros(record.samples)
    np.maximum.at(batches, columns["sample"], columns["batches"])
    return np.cumsum(batches)


def _stalls_figure(record: EmbeddingRecord) -> "go.Figure":
    figure = empty_figure()
    steps = _by_sample(record, "trainer", "batches")
    stepped = steps > 0
    batches = _batch_numbers(record)[stepped]
    for part in STALLS:
        seconds = _by_sample(record, "trainer", part)[stepped]
        figure.add_scatter(
            x=batches,
            y=1e3 * seconds / steps[stepped],
            mode="lines",
            stackgroup="stalls",
            name=STEP_PARTS[part],
        )
    figure.update_xaxes(title="batch")
    figure.update_yaxes(title="ms of a step")
    return figure


def _ahead_figure(record: EmbeddingRecord) -> "go.Figure":
    figure = empty_figure()
    for name, kind, column in (
        ("parsed by readers", "reader", "batches_ahead"),
        ("decided by the cacher", "cacher", "batches_ahead"),
        ("rows at trainers", "trainer", "ready_batches"),
    ):
        batches = _by_sample(record, kind, "batches")
        worked = batches > 0
        ahead = _by_sample(record, kind, column)[worked] / batches[worked]
        figure.add_scatter(x=record.end_s[worked], y=ahead, mode="lines", name=name)
    figure.update_xaxes(title="seconds of the job")
    figure.update_yaxes(title="batches ahead")
    return figure


def _rates_figure(record: EmbeddingRecord) -> "go.Figure":
    figure = empty_figure()
    seconds = np.maximum(np.diff(record.end_s, prepend=0.0), 1e-9)
    for name, column in _RATES.items():
        rates = _by_sample(record, "trainer", column) / seconds / 1e6
        figure.add_scatter(x=record.end_s, y=rates, mode="lines", name=name)
    figure.update_xaxes(title="seconds of the job")
    figure.update_yaxes(title="MB a second")
    return figure
