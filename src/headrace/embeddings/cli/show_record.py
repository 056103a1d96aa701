"""Records of embedding jobs as tables."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from headrace.cli.tables import facts, rows
from headrace.embeddings.run.job.advice import advice, ideal_text
from headrace.embeddings.run.job.record import EmbeddingRecord
from headrace.embeddings.run.step_times import STEP_PARTS
from headrace.units import size

PART_COLUMNS = ("measured, of a step", "ms", "of the step")
MOVED_COLUMNS = ("measured, of a trainer's step", "rows", "bytes")
WORK_COLUMNS = ("process", "ms of a batch", "for")
CHANGE_COLUMNS = ("after batch", "changed", "from -> to", "because")


def record_tables(record: EmbeddingRecord, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a record: what a step waits for, its parts, and what moves."""
    yield facts("embedding record", record_facts(record), everything=everything)
    for title, columns, cells in (
        ("parts of a step", PART_COLUMNS, part_cells(record)),
        ("rows and bytes", MOVED_COLUMNS, moved_rows_cells(record)),
        ("work beside the training threads", WORK_COLUMNS, work_cells(record)),
        ("changes while the job ran", CHANGE_COLUMNS, change_cells(record)),
    ):
        if cells:
            yield from rows(title, columns, cells, everything=everything)


def record_facts(record: EmbeddingRecord) -> dict[str, str]:
    """Return the main figures of a record, by name."""
    steps, cacher, reading = record.steps, record.cacher, record.reading
    wrong = {"results": "wrong: an ideal job"} if record.ideal else {}
    return {
        **wrong,
        "job": record.description,
        "what it waits for": advice(record),
        "without rows": ideal_text(record),
        "batches ahead": (
            f"readers {reading.batches_ahead / max(reading.batches, 1):.1f}, "
            f"cacher {cacher.batches_ahead / max(cacher.batches, 1):.1f}, "
            f"rows at trainers {steps.ready_batches / steps.batches:.1f}"
        ),
    }


def part_cells(record: EmbeddingRecord) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for each part of a steady step: its name, milliseconds, share."""
    steps = record.steps
    return [
        (
            text,
            f"{1e3 * getattr(steps, part) / steps.batches:.2f}",
            f"{getattr(steps, part) / steps.step_s:z.1%}",
        )
        for part, text in STEP_PARTS.items()
    ]


def moved_rows_cells(record: EmbeddingRecord) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for each kind of rows that a trainer moves."""
    steps = record.steps
    moved = {
        "from servers": (steps.fetched_rows, steps.fetched_bytes),
        "to trainers, before the next step": (steps.critical_rows, steps.critical_bytes),
        "to trainers, beside it": (steps.delayed_rows, steps.delayed_bytes),
        "evicted, to servers": (steps.evicted_rows, steps.evicted_bytes),
        "committed, to servers": (steps.dirty_rows, steps.dirty_bytes),
    }
    return [
        (name, f"{count / steps.batches:,.0f}", size(round(nbytes / steps.batches)))
        for name, (count, nbytes) in moved.items()
    ] + [("gradients of the dense part", "", size(round(steps.dense_bytes / steps.batches)))]


def change_cells(record: EmbeddingRecord) -> Sequence[tuple[str, str, str, str]]:
    """Return a row of cells for each change of lookahead, prefetch and shares, in their order."""
    return [
        (str(change.batch), change.name, change.values, change.reason) for change in record.changes
    ]


def work_cells(record: EmbeddingRecord) -> Sequence[tuple[str, str, str]]:
    """Return a row of cells for what each kind of process does for a batch."""
    steps, cacher = record.steps, record.cacher
    reading, serving = record.reading, record.serving
    done = {
        ("trainers", "fetching rows"): steps.fetch_s / steps.batches,
        ("trainers", "delayed exchanges"): steps.delayed_s / steps.batches,
        ("trainers", "writing evicted rows back"): steps.write_back_s / steps.batches,
        ("cacher", "waiting for readers"): cacher.reader_wait_s / max(cacher.batches, 1),
        ("cacher", "deciding"): cacher.decide_s / max(cacher.batches, 1),
        ("cacher", "dispatching"): cacher.dispatch_s / max(cacher.batches, 1),
        ("cacher", "waiting for trainers"): cacher.room_wait_s / max(cacher.batches, 1),
        ("readers", "parsing"): reading.parse_s / max(reading.batches, 1),
        ("readers", "waiting for the cacher"): reading.room_wait_s / max(reading.batches, 1),
        ("servers", "waiting for write-backs"): serving.wait_s / max(serving.batches, 1),
        ("servers", "finding rows"): serving.fetch_s / max(serving.batches, 1),
        ("servers", "writing rows"): serving.write_s / max(serving.batches, 1),
        ("servers", "logging rows"): serving.log_s / max(serving.batches, 1),
    }
    return [(process, f"{1e3 * seconds:.2f}", work) for (process, work), seconds in done.items()]
