"""Records of jobs: samples of sums, files, advice, tables and pages."""

import json
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headrace.embeddings import EmbeddingError, EmbeddingRecord, JobChange, TrainerTimes
from headrace.embeddings.cli.run_options import RecordOptions
from headrace.embeddings.cli.run_progress import progress_text, summary_lines
from headrace.embeddings.cli.show_record import record_tables
from headrace.embeddings.report.record_page import (
    _stalls_figure,  # pyright: ignore[reportPrivateUsage]
    record_page,
)
from headrace.embeddings.run.job.advice import advice, ideal_text
from headrace.embeddings.run.job.job_processes import ProcessKey
from headrace.embeddings.run.job.job_times import JobTimes, StatusRounds
from headrace.embeddings.run.step_times import CacherTimes, ReaderTimes, ServerTimes
from headrace.errors import ArtifactError
from tests.embeddings.run.job_plans import job_plan

STEP: dict[str, Any] = {"compute_s": 0.06, "copy_s": 0.01, "fetched_bytes": 5000}


def answers(
    batches: int,
    step: Mapping[str, Any] | None = None,
    cacher: Mapping[str, Any] | None = None,
    reader: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
) -> dict[ProcessKey, dict[str, Any]]:
    """Return what processes answer after some batches, each of which took as much."""

    def times(kind: type, own: Mapping[str, Any] | None) -> dict[str, Any]:
        scaled = {name: batches * number for name, number in (own or {}).items()}
        return kind(batches=batches, **scaled).to_fields()

    trainers = [times(TrainerTimes, {**STEP, **(step or {})})] * 2
    head = {"trainers": trainers, "lookahead": 8, "first_batch": 100, "adaptation": None}
    return {
        ("cacher", 0): {**head, "times": times(CacherTimes, cacher)},
        ("reader", 0): {"times": times(ReaderTimes, reader)},
        ("server", 0): {} if batches == 0 else {"times": times(ServerTimes, server)},
    }


def job(most: int = 512, rounds: int = 8, **numbers: Any) -> JobTimes:
    times = JobTimes(most)
    for batches in range(0, 3 * rounds, 3):
        for key, status in answers(batches, **numbers).items():
            times.take(key, status)
        times.sample()
    return times


def record(**numbers: Any) -> EmbeddingRecord:
    return EmbeddingRecord.of(job(**numbers), batch=64, trainers=2, servers=1, readers=1)


def shown(one: EmbeddingRecord) -> str:
    """Return a record's tables as text."""
    text = StringIO()
    console = Console(file=text, width=200)
    for table in record_tables(one, everything=False):
        console.print(table)
    return text.getvalue()


def test_samples_add_up_and_stay_few() -> None:
    few, many = job(most=4, rounds=40), job(rounds=40)
    assert len(few.samples) <= 4
    assert len(many.samples) == 40
    for kind in ("trainer", "cacher", "reader", "server"):
        assert few.total(kind).batches == many.total(kind).batches
    assert few.total("trainer").batches == 2 * 3 * 39
    assert few.samples[-1].end_s >= few.samples[0].end_s


def test_sums_of_another_start_of_the_job_are_added() -> None:
    times = job(rounds=3)
    times.begin()
    for key, status in answers(1).items():
        times.take(key, status)
    times.sample()
    assert times.total("trainer").batches == 2 * (6 + 1)


def test_a_start_after_a_loss_in_the_first_step_takes_no_sums_away(tmp_path: Path) -> None:
    """Its servers had fetched more than the next one's: the record that was saved was refused."""
    times = JobTimes()
    for fetched_rows in (500, 0):
        times.begin()
        server = ServerTimes(fetched_rows=fetched_rows)
        times.take(("server", 0), {"times": server.to_fields()})
        times.take(("cacher", 0), answers(3)["cacher", 0])
        times.sample()
    assert times.total("server") == ServerTimes(fetched_rows=500)
    recorded = EmbeddingRecord.of(times, batch=64, trainers=2, servers=1, readers=1)
    recorded.save(tmp_path / "job.record")
    assert EmbeddingRecord.load(tmp_path / "job.record").batches == 6


def test_the_batch_is_that_of_the_script() -> None:
    """A record had the examples of the plan's batch, and examples a second by these."""
    times = job()
    for batch in (32, None):  # the next start of the job does not know it yet
        times.take(("cacher", 0), answers(9)["cacher", 0] | {"batch": batch})
    options = RecordOptions(record=None, ideal=False, against=None)
    recorded = options.keep(times, job_plan(), 0.0, {})
    assert recorded is not None
    assert recorded.batch == 32 != job_plan().batch
    replanning = (
        f"The plan is for batches of {job_plan().batch:,}: measure the data with --batch 32"
    )
    assert replanning in summary_lines(recorded, job_plan().batch)[0]
    assert "The plan" not in summary_lines(recorded, 32)[0]


def test_a_sample_is_taken_when_all_have_answered() -> None:
    seen: list[int] = []
    times = JobTimes()
    sent: list[ProcessKey] = []

    class Processes:
        def send(self, key: ProcessKey, message: dict[str, Any]) -> None:
            assert message == {"status": True}
            sent.append(key)

    rounds = StatusRounds(
        keys=list(answers(2)), times=times, on_sample=lambda job, _: seen.append(len(job.samples))
    )
    assert rounds.ask_when_due(Processes()) > 0
    assert not sent

    def receive(seconds: float) -> None:
        assert seconds > 0
        key = sent.pop()
        rounds.take(key, answers(2)[key])

    rounds.last_round(Processes(), receive)
    assert seen == [1]
    assert times.total("trainer").batches == 4


def test_a_file_has_the_same_record(tmp_path: Path) -> None:
    original = replace(record(), ideal_step_s=0.05)
    original.save(tmp_path / "job.record")
    loaded = EmbeddingRecord.load(tmp_path / "job.record")
    assert loaded.digest == original.digest
    assert loaded.steps == original.steps
    assert loaded.step_s == pytest.approx(0.07)
    assert loaded.without_rows_s == pytest.approx(0.06)
    assert loaded.batches == 21


def changed_job() -> JobTimes:
    """A job whose cacher is asked twice, then lost, and asked again in its next start."""
    times = job()
    lookahead = JobChange(name="lookahead", before=40, after=6, batch=90, reason="no room")
    shares = JobChange(name="shares", before=(0.5, 0.5), after=(0.6, 0.4), batch=95, reason="slow")
    nothing = JobChange(name="none", before=0, after=0, batch=99, reason="nothing helps")
    events = [
        {"event": change.name, "at": 1e9 + number // 2, **change.to_fields(), "sentence": ""}
        for number, change in enumerate((lookahead, shares, nothing))
    ]
    for told in (events[:1], events[:2], events[2:]):
        status = answers(9)["cacher", 0] | {"adaptation": {"changes": told}}
        times.take(("cacher", 0), json.loads(json.dumps(status)))
    return times


def test_changes_of_the_job_are_recorded_once_and_shown(tmp_path: Path) -> None:
    changed = EmbeddingRecord.of(changed_job(), batch=64, trainers=2, servers=1, readers=1)
    assert [str(change) for change in changed.changes] == [
        "after batch 90: lookahead 40 -> 6: no room",
        "after batch 95: shares 0.500/0.500 -> 0.600/0.400: slow",
        "after batch 99: nothing helps",
    ]
    changed.save(tmp_path / "job.record")
    loaded = EmbeddingRecord.load(tmp_path / "job.record")
    assert loaded.changes == changed.changes
    assert loaded.digest == changed.digest
    text = shown(changed)
    assert "changes while the job ran" in text
    assert "0.500/0.500 -> 0.600/0.400" in text
    assert "no room" in record_page(changed, "job.record").html()
    assert "changes while the job ran" not in shown(record())


def test_a_wrong_change_is_refused_by_name(tmp_path: Path) -> None:
    artifact = EmbeddingRecord.of(
        changed_job(), batch=64, trainers=2, servers=1, readers=1
    ).to_artifact()
    changes = [dict(change) for change in artifact.head["changes"]]
    changes[1]["after"] = "more"
    replace(artifact, head={**artifact.head, "changes": changes}).save(tmp_path / "job.record")
    with pytest.raises(ArtifactError, match="job.record: change 1: field 'after'"):
        EmbeddingRecord.load(tmp_path / "job.record")


def test_wrong_columns_and_empty_records_are_refused(tmp_path: Path) -> None:
    wrong = record()
    column = np.full_like(wrong.tables["trainer"]["number"], 2)
    tables = {**wrong.tables, "trainer": {**wrong.tables["trainer"], "number": column}}
    replace(wrong, tables=tables).to_artifact().save(tmp_path / "job.record")
    with pytest.raises(ArtifactError, match=r"'trainer.number' needs numbers of 0 to below 2"):
        EmbeddingRecord.load(tmp_path / "job.record")
    with pytest.raises(EmbeddingError, match="no steps"):
        EmbeddingRecord.of(job(rounds=1), batch=64, trainers=2, servers=1, readers=1)


@pytest.mark.parametrize(
    ("numbers", "sentences"),
    [
        ({}, "Trainers compute for 100% of a step"),
        (
            {
                "step": {"batch_wait_s": 0.03},
                "cacher": {"reader_wait_s": 0.08, "decide_s": 0.01},
                "reader": {"parse_s": 0.097, "room_wait_s": 0.003},
            },
            "wait for batches for 30% of a step: readers parse at 97% of their time; start another "
            "with --readers 2",
        ),
        (
            {"step": {"batch_wait_s": 0.03}, "cacher": {"reader_wait_s": 0.01, "decide_s": 0.08}},
            "the cacher decides and dispatches for 89% of its time",
        ),
        (
            {"step": {"batch_wait_s": 0.03}, "cacher": {"room_wait_s": 0.1}},
            "the cacher has room",
        ),
        (
            {"step": {"fetch_wait_s": 0.03, "fetch_s": 0.04}, "server": {"fetch_s": 0.1}},
            "wait for fetched rows for 30% of a step: servers find 5 KB of rows for a "
            "trainer's step; start another with --servers 2",
        ),
        (
            {"step": {"fetch_wait_s": 0.03, "fetch_s": 0.04}, "server": {"wait_s": 0.1}},
            "servers wait for rows that are to be written back first",
        ),
        ({"step": {"fetch_wait_s": 0.03, "fetch_s": 0.04}}, "are under way; plan with a larger"),
        (
            {"step": {"exchange_wait_s": 0.03, "critical_bytes": 2048}},
            "wait for other trainers for 30% of a step: 2 KiB go from a trainer to others",
        ),
        (
            {"step": {"delayed_wait_s": 0.03, "write_back_s": 0.1, "evicted_bytes": 1024}},
            "writing 1 KiB of evicted rows back takes longer than computing",
        ),
        (
            {"step": {"delayed_wait_s": 0.03, "delayed_s": 0.1, "delayed_bytes": 1024}},
            "sending 1 KiB to other trainers takes longer than computing",
        ),
        ({"step": {"commit_wait_s": 0.03}}, "make commits rarer with --commit-every"),
        (
            {"step": {"dense_wait_s": 0.03, "dense_bytes": 1024}},
            # not by compression: the model's hook is the job's own
            "gradients of 1 KiB are averaged; plan it (headrace collectives), or train larger",
        ),
    ],
)
def test_the_advice_names_the_longest_wait_its_cause_and_a_remedy(
    numbers: dict[str, Mapping[str, Any]], sentences: str
) -> None:
    assert sentences in advice(record(**numbers))


def test_a_trainer_that_computes_longer_is_named() -> None:
    one = record(step={"exchange_wait_s": 0.03})
    computed = one.tables["trainer"]["compute_s"].copy()
    computed[one.tables["trainer"]["number"] == 1] *= 2
    tables = {**one.tables, "trainer": {**one.tables["trainer"], "compute_s": computed}}
    assert "trainer 1 computes for 120.0 ms, the fastest for 60.0 ms" in advice(
        replace(one, tables=tables)
    )


def test_trainers_that_a_job_went_on_without_are_not_its_fastest() -> None:
    """One that was lost "computes for 0.0 ms", and batches were those of all trainers' mean."""
    one = record(step={"exchange_wait_s": 0.03, "critical_bytes": 2048})
    fewer = replace(one, trainers=3)
    assert advice(fewer) == advice(one)
    assert "2 KiB go from a trainer to others" in advice(fewer)
    stalls = _stalls_figure(fewer)
    assert stalls.data[0].x[-1] == one.batches


def test_progress_and_summary() -> None:
    times = job(step={"batch_wait_s": 0.03})
    text = progress_text(times, times.samples[-1], 0.5, commit_every=50)
    assert text == (
        "batch 121: 6.0 batches/s; wait for the batch 30% of a step; next commit after batch 150"
    )
    silent = JobTimes()
    assert progress_text(silent, silent.sample(), 0.5, 50) is None
    lines = summary_lines(record(step={"batch_wait_s": 0.03}), 64)
    assert len(lines) == 5
    assert lines[0].startswith("21 batches of 64 examples in ")
    assert "forward and backward pass 60%, wait for the batch 30%" in lines[1]


def test_progress_after_a_loss_is_that_of_the_trainers_that_are_left() -> None:
    """It had the batches before the commit twice, and half of the rate."""
    times = job()  # up to batch 121
    times.begin()
    left = answers(9)["cacher", 0] | {"first_batch": 110}
    for batches in (2, 9):
        of_one = {"trainers": [TrainerTimes(batches=batches, compute_s=0.1 * batches).to_fields()]}
        times.take(("cacher", 0), left | of_one)
        sample = times.sample()
    text = progress_text(times, sample, 0.5, commit_every=0)
    assert text is not None
    assert text.startswith("batch 119: 14.0 batches/s;")
    recorded = EmbeddingRecord.of(times, batch=64, trainers=2, servers=1, readers=1)
    assert recorded.batches == 21 + 9


def test_tables_and_page_have_what_was_measured() -> None:
    waiting = replace(record(step={"batch_wait_s": 0.03}), ideal_step_s=0.05)
    assert "wait for the batch  30.00" in shown(waiting)
    html = record_page(waiting, "job.record").html()
    assert html.count("Plotly.newPlot") >= 4
    assert "ideal job" in html
    assert ideal_text(waiting).endswith("50% is the step of the ideal job (50.0 ms, measured)")
