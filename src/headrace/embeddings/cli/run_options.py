"""Options of ``headrace embeddings run``, by what they are about."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import count, flag, output_option
from headrace.embeddings.errors import EmbeddingError

if TYPE_CHECKING:
    from headrace.embeddings.plan.plan import EmbeddingPlan
    from headrace.embeddings.run.job.job_processes import JobOptions
    from headrace.embeddings.run.job.job_times import JobTimes
    from headrace.embeddings.run.job.record import EmbeddingRecord


def process_numbers(
    trainers: Annotated[
        int | None,
        typer.Option(help="Number of trainers; the plan's by default.", min=1, max=32),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option(help="Processes that store rows; the plan's by default.", min=1),
    ] = None,
    readers: Annotated[
        int | None,
        typer.Option(help="Processes that read data; the plan's by default.", min=1),
    ] = None,
) -> Mapping[str, int]:
    """Return the numbers of processes that replace a plan's, by its fields."""
    numbers = {"trainers": trainers, "servers": servers, "readers": readers}
    return {kind: number for kind, number in numbers.items() if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Start of a job: its commits, starting again, and shares of batches.

    Attributes
    ----------
    state : folder of the job's commits; None: there are none.
    commit_every : batches between commits; None: the plan's.
    restart : whether it goes on by itself where a process was lost.
    min_trainers : fewest that it goes on with where some do not come back; None: all.
    equal_shares : whether trainers have equal shares of batches whatever their rates.
    script_reads : whether readers run the script, too.
    """

    state: Path | None
    commit_every: int | None
    restart: bool
    min_trainers: int | None
    equal_shares: bool
    script_reads: bool

    def of_job(self, plan: "EmbeddingPlan", *, ideal: bool) -> "JobOptions":
        """Return the options of a plan's job on a machine with the environment's settings.

        Raises
        ------
        EmbeddingError : an ideal job has a folder, or commits have none.
        """
        from headrace.embeddings.run.job.job_processes import JobOptions
        from headrace.embeddings.settings import EmbeddingSettings

        if self.commit_every is not None and self.state is None:
            raise EmbeddingError("--commit-every needs --state: without its folder none is made")
        return replace(
            JobOptions.of_plan(plan, EmbeddingSettings.from_environment()),
            folder=self.state,
            commit_every=plan.commit_every if self.commit_every is None else self.commit_every,
            equal_shares=self.equal_shares,
            ideal=ideal,
        )


def start_options(
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the job's commits: one that has some is gone on with from the newest."
        ),
    ] = None,
    commit_every: Annotated[
        int | None,
        count("Batches between commits; 0: at ends of epochs.", least=0, default="the plan's"),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(help="Go on from the last commit by itself where a process was lost."),
    ] = True,
    min_trainers: Annotated[
        int | None,
        count("Fewest to go on with, of --state, if others are lost.", least=1, default="all"),
    ] = None,
    equal_shares: Annotated[
        bool,
        flag("--equal-shares", "Trainers have equal shares of batches whatever their rates."),
    ] = False,
    script_reads: Annotated[
        bool,
        flag("--script-reads", "Readers run the script, too: its fit serves its own dataset."),
    ] = False,
) -> StartOptions:
    """Return the options of how a job starts."""
    return StartOptions(
        state=state,
        commit_every=commit_every,
        restart=restart,
        min_trainers=min_trainers,
        equal_shares=equal_shares,
        script_reads=script_reads,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Record of a job, and of an ideal one that moves no rows.

    Attributes
    ----------
    record : file for a record of the job; None: none is written.
    ideal : whether no rows move, and results are wrong.
    against : record of an ideal job, to compare steps with.
    """

    record: Path | None
    ideal: bool
    against: Path | None

    def ideal_step_s(self) -> float:
        """Return the seconds of a step of the ideal job; 0 without its record.

        Raises
        ------
        EmbeddingError : the record is of a job that moved rows.
        ArtifactError : the file holds no record.
        """
        from headrace.embeddings.run.job.record import EmbeddingRecord

        if self.against is None:
            return 0.0
        recorded = EmbeddingRecord.load(self.against)
        if not recorded.ideal:
            raise EmbeddingError(
                f"{self.against}: is no record of an ideal job: make one with run --ideal"
            )
        return recorded.step_s

    def keep(
        self,
        times: "JobTimes | None",
        plan: "EmbeddingPlan",
        ideal_step_s: float,
        provenance: Mapping[str, Any],
    ) -> "EmbeddingRecord | None":
        """Return a job's record, None if it trained on no batch; write it if a file is named.

        Raises
        ------
        EmbeddingError : a file is named, and there is nothing to write.
        """
        from headrace.embeddings.run.job.record import EmbeddingRecord

        if times is None or times.total("trainer").batches == 0:
            if self.record is not None:
                raise EmbeddingError(
                    f"{self.record} was not written: the script trained on no batch"
                )
            return None
        recorded = EmbeddingRecord.of(
            times,
            batch=times.batch or plan.batch,
            trainers=plan.trainers,
            servers=plan.servers,
            readers=plan.readers,
            ideal=self.ideal,
            ideal_step_s=ideal_step_s,
        )
        if self.record is not None:
            recorded.save(self.record, provenance)
        return recorded


def record_options(
    record: Annotated[
        Path | None,
        output_option("File for a record of the job: what steps took and waited for.", "--record"),
    ] = None,
    ideal: Annotated[
        bool,
        flag("--ideal", "Move no rows, to see how short a step could be: RESULTS ARE WRONG."),
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Record of an ideal job, to compare steps with.")
    ] = None,
) -> RecordOptions:
    """Return the options of a job's record."""
    return RecordOptions(record=record, ideal=ideal, against=against)
