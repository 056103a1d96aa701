"""Jobs of real processes: what two trainers learn is what one process does by torch alone."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.embeddings import CriteoData, Synchronisation
from headrace.embeddings.run.job_processes import JobHosts, JobOptions
from headrace.embeddings.run.supervisor import run_embedding_job
from headrace.settings import child_environment
from tests.embeddings.run import clicks_job
from tests.embeddings.run.clicks_job import EPOCHS, ROWS, TABLES, data_of, epoch, model_of
from tests.waiting import HANG_S, JOB_S

SCRIPT = Path(clicks_job.__file__)
EXAMPLES = 500
"""The last batch of an epoch is shorter, and shared unequally."""


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "clicks.tsv"
    arguments = ["embeddings", "generate", "-o", path, "--examples", EXAMPLES, "--most-rows", 200]
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    return path


@pytest.fixture(scope="module")
def expected(clicks: Path) -> dict[str, Tensor]:
    """What one process learns by torch alone."""
    data = data_of(clicks)
    model, optimizer = model_of(data)
    for _ in range(EPOCHS):
        epoch(model, optimizer, torch_batches(data))
    return {name: weight.detach() for name, weight in model.state_dict().items()}


def torch_batches(data: CriteoData) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [
        (
            torch.from_numpy(examples.dense),
            torch.stack([torch.from_numpy(ids) for ids in examples.ids], dim=1),
            torch.from_numpy(examples.labels),
        )
        for examples in data.read()
        if examples.labels is not None
    ]


def assert_close(path: Path, expected: dict[str, Tensor], tolerance: float) -> None:
    learned = torch.load(path)
    assert learned.keys() == expected.keys()
    for name, values in expected.items():
        assert learned[name].shape == values.shape
        assert torch.allclose(learned[name], values, rtol=tolerance, atol=tolerance), name


def environment() -> dict[str, str | None]:
    return {"PYTHONPATH": str(Path.cwd())}


@pytest.mark.parametrize(
    ("trainers", "script_reads"),
    [(2, False), pytest.param(1, True, marks=pytest.mark.slow)],
)
def test_trainers_learn_as_one_process_does(
    clicks: Path, expected: dict[str, Tensor], tmp_path: Path, trainers: int, script_reads: bool
) -> None:
    output = tmp_path / "learned"
    lines: list[tuple[str, str]] = []
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(clicks), str(output)],
        JobOptions(
            lookahead=4,
            prefetch=2,
            synchronisation=Synchronisation.TARGETED,
            cache_bytes=TABLES * ROWS * 64,
            deadline_s=HANG_S,
        ),
        JobHosts.on_this_machine(trainers=trainers, servers=2, readers=1),
        on_line=lambda name, line: lines.append((name, line)),
        script_reads=script_reads,
        environment=environment(),
    )
    assert_close(output, expected, 1e-9)
    told = {(name, line.partition(":")[0]) for name, line in lines}
    assert told >= {
        (f"trainer {rank}", f"epoch {number}")
        for rank in range(trainers)
        for number in range(EPOCHS)
    }


@pytest.mark.slow
def test_a_script_without_a_supervisor_starts_what_serves_it(
    clicks: Path, expected: dict[str, Tensor], tmp_path: Path
) -> None:
    output = tmp_path / "learned"
    done = subprocess.run(
        [sys.executable, SCRIPT, clicks, output],
        env=child_environment(environment()),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch") == EPOCHS
    assert_close(output, expected, 1e-9)
