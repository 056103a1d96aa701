"""Says what the steps of a job wait for, and what to do about it."""

from collections.abc import Callable

from headrace.embeddings.run.job.record import EmbeddingRecord
from headrace.embeddings.run.step_times import STALLS, STEP_PARTS, TrainerTimes
from headrace.units import size

_LITTLE = 0.05
"""Share of a step below which nothing is advised: timings differ by as much."""


def advice(record: EmbeddingRecord) -> str:
    """Return sentences: the longest wait of a steady step, its cause, and a remedy."""
    steps = record.steps
    cause = max(STALLS, key=lambda part: getattr(steps, part))
    share = getattr(steps, cause) / steps.step_s
    if share < _LITTLE:
        computing = (steps.step_s - steps.stall_s) / steps.step_s
        return (
            f"Trainers compute for {computing:z.0%} of a step and wait for nothing long: more "
            "trainers, or a faster model, make it shorter."
        )
    reason, remedy = _CAUSES[cause](record)
    return f"Trainers {_VERBS[cause]} for {share:z.0%} of a step: {reason}; {remedy}."


_VERBS = {
    "dense_wait_s": "wait for the average of the dense part",
    "batch_wait_s": "wait for batches",
    "fetch_wait_s": "wait for fetched rows",
    "exchange_wait_s": "wait for other trainers",
    "delayed_wait_s": "wait for the delayed exchange",
    "commit_wait_s": "wait for commits",
}


def _of_batches(record: EmbeddingRecord) -> tuple[str, str]:
    cacher, reading = record.cacher, record.reading
    working_s = cacher.decide_s + cacher.dispatch_s
    parsing = reading.parse_s / max(reading.parse_s + reading.room_wait_s, 1e-9)
    if cacher.reader_wait_s > max(working_s, cacher.room_wait_s):
        return (
            f"readers parse at {parsing:z.0%} of their time",
            f"start another with --readers {record.readers + 1}",
        )
    in_all_s = working_s + cacher.reader_wait_s + cacher.room_wait_s
    deciding = working_s / max(in_all_s, 1e-9)
    if deciding > 0.5:
        return (
            f"the cacher decides and dispatches for {deciding:z.0%} of its time",
            "give it a processor of its own, or train with fewer examples a batch",
        )
    dispatched = cacher.dispatched_bytes / max(cacher.batches, 1)
    return (
        f"the cacher has room, but {size(round(dispatched))} of each batch are under way",
        "a faster network between cacher and trainers is needed, or fewer examples a batch",
    )


def _of_fetches(record: EmbeddingRecord) -> tuple[str, str]:
    steps, serving = record.steps, record.serving
    fetched = size(round(steps.fetched_bytes / steps.batches))
    if serving.wait_s > 0.5 * steps.fetch_s:
        return (
            "servers wait for rows that are to be written back first",
            "plan with a larger --cache-memory, so that fewer rows leave the caches",
        )
    if serving.fetch_s > 0.5 * steps.fetch_s:
        return (
            f"servers find {fetched} of rows for a trainer's step",
            f"start another with --servers {record.servers + 1}",
        )
    return (
        f"{fetched} of rows for a trainer's step are under way",
        "plan with a larger --cache-memory, so that fewer rows are fetched",
    )


def _of_exchange(record: EmbeddingRecord) -> tuple[str, str]:
    trainers = {trainer: _trainer(record, trainer) for trainer in range(record.trainers)}
    computed = {  # the job may have gone on without some
        trainer: times.compute_s / times.batches
        for trainer, times in trainers.items()
        if times.batches > 0
    }
    waited = record.steps.exchange_wait_s / record.steps.batches
    slowest = max(computed, key=lambda trainer: computed[trainer])
    longest_s, shortest_s = computed[slowest], min(computed.values())
    if longest_s - shortest_s > 0.5 * waited:
        return (
            f"trainer {slowest} computes for {1e3 * longest_s:.1f} ms, the fastest for "
            f"{1e3 * shortest_s:.1f} ms",
            "look at what else its host does",
        )
    sent = size(round(record.steps.critical_bytes / record.steps.batches))
    return (
        f"{sent} go from a trainer to others before the next step",
        "more examples a batch, or fewer trainers, send less for each example",
    )


def _of_delayed(record: EmbeddingRecord) -> tuple[str, str]:
    steps = record.steps
    if steps.write_back_s > steps.delayed_s:
        written = size(round(steps.evicted_bytes / steps.batches))
        return (
            f"writing {written} of evicted rows back takes longer than computing",
            f"plan with a larger --cache-memory, or start another server with --servers "
            f"{record.servers + 1}",
        )
    sent = size(round(steps.delayed_bytes / steps.batches))
    return (
        f"sending {sent} to other trainers takes longer than computing",
        "fewer trainers, or a faster network between them, make it shorter",
    )


def _of_commits(record: EmbeddingRecord) -> tuple[str, str]:
    written = size(round(record.steps.dirty_bytes / record.steps.batches))
    return (
        f"a commit is not written when the next one begins ({written} of a trainer's rows a step)",
        "make commits rarer with --commit-every",
    )


def _of_average(record: EmbeddingRecord) -> tuple[str, str]:
    averaged = size(round(record.steps.dense_bytes / record.steps.batches))
    return (
        f"gradients of {averaged} are averaged",
        "plan it (headrace collectives), or train larger batches with fewer trainers",
    )


_CAUSES: dict[str, Callable[[EmbeddingRecord], tuple[str, str]]] = {
    "dense_wait_s": _of_average,
    "batch_wait_s": _of_batches,
    "fetch_wait_s": _of_fetches,
    "exchange_wait_s": _of_exchange,
    "delayed_wait_s": _of_delayed,
    "commit_wait_s": _of_commits,
}


def _trainer(record: EmbeddingRecord, trainer: int) -> TrainerTimes:
    times = record.sums("trainer", trainer, first=record.steady)
    assert isinstance(times, TrainerTimes)
    return times


def parts_text(steps: TrainerTimes) -> str:
    """Return the parts of steps that have 1% of them or more, the longest first."""
    shares = {text: getattr(steps, part) / steps.step_s for part, text in STEP_PARTS.items()}
    ordered = sorted(shares.items(), key=lambda named: -named[1])
    return ", ".join(f"{text} {share:z.0%}" for text, share in ordered if share >= 0.01)


def ideal_text(record: EmbeddingRecord) -> str:
    """Return how near steps are to those without rows: computed, and measured where known."""
    computed = record.without_rows_s / record.step_s
    text = f"{computed:z.0%} of a step would remain without all that rows take (computed)"
    if record.ideal_step_s > 0:
        text += (
            f"; {record.ideal_step_s / record.step_s:z.0%} is the step of the ideal job "
            f"({1e3 * record.ideal_step_s:.1f} ms, measured)"
        )
    return text
