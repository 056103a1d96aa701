"""Progress of a job on the console, and its summary."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console

from headrace.embeddings.run.job.advice import advice, ideal_text, parts_text
from headrace.embeddings.run.job.job_times import JobTimes, OnSample, TimesSample
from headrace.embeddings.run.job.record import EmbeddingRecord
from headrace.embeddings.run.step_times import STALLS, STEP_PARTS, TrainerTimes
from headrace.units import size

_LINE_EVERY_S = 30.0
"""Off a terminal."""


@contextmanager
def job_progress(
    console: Console, errors: Console, commit_every: int
) -> Generator[tuple[OnSample, Callable[[], JobTimes | None]]]:
    """Show a job's progress: on a terminal a line below its output, else a line every 30 s.

    Parameters
    ----------
    console : that the job's output goes to.
    errors : for lines, where that is no terminal.
    commit_every : batches from one commit to the next; 0: there are none.

    Yields
    ------
    A function for the job's samples; one that returns the job's times, None before the first.
    """
    latest: JobTimes | None = None
    latest_end_s = 0.0
    printed_s = time.monotonic()

    def show(text: str) -> None:
        nonlocal printed_s
        if console.is_terminal:
            status.update(text)
        elif time.monotonic() - printed_s >= _LINE_EVERY_S:
            printed_s = time.monotonic()
            errors.print(text, markup=False)

    def on_sample(times: JobTimes, sample: TimesSample) -> None:
        nonlocal latest, latest_end_s
        seconds = sample.end_s - latest_end_s
        latest, latest_end_s = times, sample.end_s
        if text := progress_text(times, sample, seconds, commit_every):
            show(text)

    with console.status("the job starts") as status:
        yield on_sample, lambda: latest


def progress_text(
    times: JobTimes, sample: TimesSample, seconds: float, commit_every: int
) -> str | None:
    """Return the progress in an interval of so many seconds; None before the first batch."""
    trainers = {key: sums for key, sums in sample.sums.items() if isinstance(sums, TrainerTimes)}
    if not trainers or times.total("trainer").batches == 0:
        return None
    batch, steps = times.next_batch, TrainerTimes()
    for own in trainers.values():
        steps.add(own)
    text = f"batch {batch:,}: {steps.batches / len(trainers) / max(seconds, 1e-9):.1f} batches/s"
    if steps.batches > 0:
        part = max(STALLS, key=lambda name: getattr(steps, name))
        text += f"; {STEP_PARTS[part]} {getattr(steps, part) / steps.step_s:z.0%} of a step"
    if commit_every:
        text += f"; next commit after batch {(batch // commit_every + 1) * commit_every:,}"
    return text


def summary_lines(record: EmbeddingRecord, planned_batch: int) -> list[str]:
    """Return five lines on a job: its pace, a step, bytes, batches ahead, and what to do.

    Parameters
    ----------
    planned_batch : examples of a batch by the plan, whose lookahead and caches are for these.
    """
    steps, cacher, reading = record.steps, record.cacher, record.reading
    seconds = float(record.end_s[-1])
    moved = {
        "fetched": steps.fetched_bytes,
        "to other trainers": steps.critical_bytes + steps.delayed_bytes,
        "written back": steps.evicted_bytes,
    }
    pace = (
        f"{record.batches:,} batches of {record.batch:,} examples in {seconds:.1f} s, "
        f"{1e3 * record.step_s:.1f} ms a step: {record.batch / record.step_s:,.0f} examples/s."
    )
    if record.batch != planned_batch:
        pace += (
            f" The plan is for batches of {planned_batch:,}: measure the data with --batch "
            f"{record.batch}, and plan again."
        )
    moved_text = ", ".join(
        f"{size(round(count / steps.batches))} {name}" for name, count in moved.items()
    )
    return [
        pace,
        f"A step: {parts_text(steps)}.",
        f"A trainer's step moves {moved_text}.",
        f"Ahead: readers {reading.batches_ahead / max(reading.batches, 1):.1f} batches, the cacher "
        f"{cacher.batches_ahead / max(cacher.batches, 1):.1f}, rows "
        f"{steps.ready_batches / steps.batches:.1f}; {ideal_text(record)}.",
        advice(record),
    ]
