"""Jobs of real processes: what two trainers learn is what one process does by torch alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DistributedSampler
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.embeddings import Synchronisation
from headrace.embeddings.errors import JobError
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions, RoleHost
from headrace.embeddings.run.job.supervisor import OnJobLine, run_embedding_job
from headrace.launch.roles import Start, start_local
from headrace.settings import child_environment
from tests.embeddings.run import clicks_job
from tests.embeddings.run.clicks_job import (
    EPOCHS,
    ROWS,
    TABLES,
    data_of,
    epoch,
    loader_of,
    model_and_optimizer,
    schedule_of,
    torch_batches,
)
from tests.embeddings.run.job.test_supervisor import start_nothing
from tests.waiting import ENDLESS_S, HANG_S, JOB_S, with_longer_deadlines

SCRIPT = Path(clicks_job.__file__)
EXAMPLES = 500
"""The last batch of an epoch is shorter, and shared unequally."""
SAMPLED = pytest.mark.sampled(1, of="embedding jobs")


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "clicks.tsv"
    arguments = ["embeddings", "generate", "-o", path, "--examples", EXAMPLES, "--most-rows", 200]
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    return path


def expected(
    clicks: Path, source: str, loaded: Sequence[Tensor] | None = None
) -> dict[str, Tensor]:
    """Return what one process learns by torch alone.

    Parameters
    ----------
    loaded : weights that the tables get after the first epoch, with the optimizer's initial state.
    """
    model, optimizer = model_and_optimizer()
    schedule = schedule_of(optimizer)
    loader = loader_of(clicks)
    for number in range(EPOCHS):
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(number)
        epoch(model, optimizer, loader if source == "loader" else torch_batches(data_of(clicks)))
        schedule.step()
        for table, weight in zip(model.tables if number == 0 else (), loaded or (), strict=False):
            assert isinstance(table, nn.Embedding)
            table.weight.data.copy_(weight)
            optimizer.state[table.weight]["sum"].zero_()
    return {name: weight.detach() for name, weight in model.state_dict().items()}


def assert_close(path: Path, expected: dict[str, Tensor]) -> None:
    learned = torch.load(path)
    assert learned.keys() == expected.keys()
    for name, values in expected.items():
        assert learned[name].shape == values.shape
        assert torch.allclose(learned[name], values, rtol=1e-9, atol=1e-9), name


def job_options(**options: Any) -> JobOptions:
    """Return options of a job on clicks, whose processes may wait, and be silent, for minutes."""
    common: dict[str, Any] = {
        "lookahead": 4,
        "prefetch": 2,
        "cache_bytes": TABLES * ROWS * 64,
        "deadline_s": ENDLESS_S,
        "silence_s": HANG_S,
    }
    return JobOptions(**(common | options))


def with_longer_silences(check: Callable[[float], None]) -> None:
    """Check a job whose process is stopped, with a time that it may be silent, and a longer one."""

    def failing_check(silence_s: float) -> None:
        try:
            check(silence_s)
        except JobError as error:  # another process was silent on a busy machine
            raise AssertionError(str(error)) from error

    with_longer_deadlines(failing_check, (4.0, 30.0))


def environment() -> dict[str, str | None]:
    return {"PYTHONPATH": str(Path.cwd())}


@pytest.mark.parametrize(
    ("trainers", "readers", "source"),
    [
        pytest.param(2, 1, "files", marks=SAMPLED),
        pytest.param(1, 2, "loader", marks=pytest.mark.slow),
    ],
)
def test_trainers_learn_as_one_process_does(
    clicks: Path, tmp_path: Path, trainers: int, readers: int, source: str
) -> None:
    output = tmp_path / "learned"
    lines: list[tuple[str, str]] = []
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(clicks), str(output), source],
        job_options(synchronisation=Synchronisation.TARGETED),
        JobHosts.on_this_machine(trainers=trainers, servers=2, readers=readers),
        on_line=lambda name, line: lines.append((name, line)),
        script_reads=source == "loader",
        environment=environment(),
    )
    assert_close(output, expected(clicks, source))
    told = {(name, line.partition(":")[0]) for name, line in lines}
    assert told >= {
        (f"trainer {rank}", f"epoch {number}")
        for rank in range(trainers)
        for number in range(EPOCHS)
    }


@pytest.mark.parametrize(
    ("commit_every", "killed_at"),
    [
        pytest.param(3, 4, marks=SAMPLED),
        pytest.param(0, 0, marks=pytest.mark.slow, id="at the end of an epoch"),
        pytest.param(11, 0, marks=pytest.mark.slow, id="of the last batch of an epoch"),
    ],
)
def test_a_killed_job_goes_on_from_its_last_commit_with_other_numbers(
    clicks: Path, tmp_path: Path, commit_every: int, killed_at: int
) -> None:
    output, folder = tmp_path / "learned", tmp_path / "state"
    options = job_options(folder=folder, commit_every=commit_every)
    lines: list[str] = []

    def run(purpose: str, trainers: int, servers: int) -> None:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output), purpose],
            options,
            JobHosts.on_this_machine(trainers=trainers, servers=servers),
            on_line=lambda _, line: lines.append(line),
            environment=environment(),
        )

    with pytest.raises(JobError, match="trainer 1 was ended by signal 9"):
        run(f"kill-{killed_at}", trainers=2, servers=2)
    mark = CommitFolder(folder).newest()
    assert mark is not None
    assert (mark.epoch, mark.trainers, len(mark.servers)) == (1, 2, 2)
    assert mark.batch >= mark.epoch_began == 11
    lines.clear()
    run("files", trainers=1, servers=1)
    assert_close(output, expected(clicks, "files"))
    assert not any(line.startswith("epoch 0") for line in lines)  # it was not done again
    mark = CommitFolder(folder).newest()
    assert mark is not None
    assert (mark.epoch, mark.batch, len(mark.servers)) == (2, 22, 1)
    assert [path.name for path in folder.rglob("server-*")] == ["server-0-of-1"]


def epochs_of(lines: Sequence[tuple[str, str]], role: str) -> list[str]:
    """The epochs that a role printed, without what it says of those that it lost."""
    return [line[:7] for name, line in lines if name == role and line.startswith("epoch ")]


@pytest.mark.slow
@pytest.mark.parametrize("commit_every", [0, 11])
def test_rows_that_are_loaded_after_an_epoch_are_there_where_the_job_begins_again(
    clicks: Path, tmp_path: Path, commit_every: int
) -> None:
    """The next epoch had the rows before them, and the dense part after them."""
    output, folder, lines = tmp_path / "learned", tmp_path / "rows", list[tuple[str, str]]()
    folder.mkdir()
    loaded = torch.randn(TABLES, ROWS, 4, generator=torch.Generator().manual_seed(1)).double()
    for number, rows in enumerate(loaded):
        np.savez(folder / f"tables.{number}.npz", id=np.arange(ROWS), row=rows.numpy())
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(clicks), str(output), "load-1"],
        job_options(folder=tmp_path / "state", commit_every=commit_every),
        JobHosts.on_this_machine(trainers=2, servers=2),
        on_line=lambda name, line: lines.append((name, line)),
        environment=environment() | {"LOADED": str(folder)},
        restart=True,
    )
    (told,) = [line for name, line in lines if name == "supervisor"]
    assert told.startswith("trainer 1 was ended by signal 9. ")
    # the first one was not done again
    assert epochs_of(lines, "trainer 0") == ["epoch 0", "epoch 1"]
    assert_close(output, expected(clicks, "files", [*loaded]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "source"), [(signal.SIGKILL, "files"), (signal.SIGSTOP, "loader")]
)
def test_a_lost_reader_starts_again_and_nothing_else_does(
    clicks: Path, tmp_path: Path, number: signal.Signals, source: str
) -> None:
    """It learns bit for bit what an undisturbed job does, and begins no epoch again."""
    lines: list[tuple[str, str]] = []
    readers: list[Popen[Any]] = []
    disturbed_file = tmp_path / "disturbed it"

    def start(argv: Sequence[str], **options: Any) -> Popen[Any]:
        readers.append(start_local(argv, **options))
        return readers[-1]

    def disturb(name: str, line: str) -> None:
        lines.append((name, line))
        if line.startswith("epoch 0"):  # its trainer goes on when most of the next is not read
            os.kill(readers[-1].pid, number)
            disturbed_file.touch()

    def learned(name: str, on_line: OnJobLine, silence_s: float = HANG_S) -> dict[str, Tensor]:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(tmp_path / name), source],
            job_options(lookahead=1, prefetch=1, silence_s=silence_s),
            JobHosts(readers=(RoleHost(start=start),)),
            on_line=on_line,
            script_reads=source == "loader",
            environment=environment() | {"AWAITED": str(disturbed_file)},
            restart=True,
        )
        return torch.load(tmp_path / name)

    disturbed_file.touch()
    undisturbed = learned("undisturbed", lambda _name, _line: None)

    def check(silence_s: float) -> None:
        readers.clear()
        lines.clear()
        disturbed_file.unlink()
        disturbed = learned("disturbed", disturb, silence_s)
        assert len(readers) == 2
        told = [line for name, line in lines if name == "supervisor"]
        assert len(told) == 1
        assert told[0].endswith("The other processes go on while it starts again.")
        assert epochs_of(lines, "trainer 0") == ["epoch 0", "epoch 1"]
        for name, values in undisturbed.items():
            assert torch.equal(disturbed[name], values), name

    with_longer_silences(check)


@pytest.mark.slow
def test_a_job_goes_on_with_the_trainers_that_are_left(clicks: Path, tmp_path: Path) -> None:
    output, lines = tmp_path / "learned", list[tuple[str, str]]()
    starts: list[Start] = [start_nothing, start_local]
    lost = RoleHost(start=lambda argv, **options: starts.pop()(argv, **options))
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(clicks), str(output), "kill-4"],
        job_options(folder=tmp_path / "state", commit_every=2),
        JobHosts(trainers=(RoleHost(), lost), servers=(RoleHost(), RoleHost())),
        on_line=lambda name, line: lines.append((name, line)),
        environment=environment(),
        restart=True,
        min_trainers=1,
    )
    told = [line for name, line in lines if name == "supervisor"]
    assert len(told) == 2
    assert told[0].startswith("trainer 1 was ended by signal 9. ")
    assert told[1].endswith("with as many trainers as are left: 1.")
    assert_close(output, expected(clicks, "files"))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["files", "loader"])
def test_a_script_without_a_supervisor_starts_what_serves_it(
    clicks: Path, tmp_path: Path, source: str
) -> None:
    output = tmp_path / "learned"
    done = subprocess.run(
        [sys.executable, SCRIPT, clicks, output, source],
        env=child_environment(environment()),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch") == EPOCHS
    assert_close(output, expected(clicks, source))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("purpose", "reason"),
    [
        ("kill-4", "trainer 1 was ended by signal 9"),
        ("stop-4", "trainer 1: it has been silent for "),
    ],
)
def test_a_job_whose_trainer_is_lost_again_and_again_goes_on_by_itself(
    clicks: Path, tmp_path: Path, purpose: str, reason: str
) -> None:
    def check(silence_s: float) -> None:
        output, lines = tmp_path / "learned", list[tuple[str, str]]()
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output), purpose],
            job_options(
                folder=tmp_path / f"state of {silence_s}", commit_every=2, silence_s=silence_s
            ),
            JobHosts.on_this_machine(trainers=2, servers=2),
            on_line=lambda name, line: lines.append((name, line)),
            environment=environment(),
            restart=True,
        )
        told = [line for name, line in lines if name == "supervisor"]
        assert len(told) >= 2
        assert all(line.startswith(reason) for line in told), told
        assert_close(output, expected(clicks, "files"))

    with_longer_silences(check)
