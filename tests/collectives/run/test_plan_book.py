"""A job under plain torchrun uses its plan book, or says why not."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.topology.presets import uniform
from tests.conformance import warm
from tests.conformance.launch import environment, free_port
from tests.waiting import JOB_S

JOB = Path(__file__).with_name("book_job.py")


def book(path: Path, ranks: int, bytes_per_s: float) -> str:
    topology = uniform(ranks, bytes_per_s=bytes_per_s)
    topology = replace(topology, hosts=("here",), rank_host=(0,) * ranks)
    build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 20]).save(path)
    return str(path)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("books")
    books = [
        book(folder / "fitting", 2, 1e9),
        book(folder / "other", 2, 2e9),
        book(folder / "larger", 3, 1e9),
    ]
    job = warm.command(str(JOB), *books)
    torchrun = warm.command(
        *("-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--no-python"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", *job),
    )
    done = subprocess.run(
        torchrun,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_book_serves_the_job(said: str) -> None:
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\] allreduce of 1048576 bytes from 0: plan book", said), said


def test_templates_serve_a_part_of_the_job(said: str) -> None:
    for rank in (0, 1):
        later = said.split(f"[{rank}] one rank of the job:")[1]
        assert re.search(rf"\[{rank}\] allreduce of 1048576 bytes from 0: template", later), said


def test_ranks_with_different_books_are_named(said: str) -> None:
    for rank in (0, 1):
        assert re.search(rf"\[{rank}\] ERROR .*rank 0 has .*; rank 1 has", said), said


def test_a_book_that_does_not_fit_is_told_by_one_rank(said: str) -> None:
    assert re.search(r"\[0\] WARNING .*made for 3 ranks, the job has 2", said), said
    assert "[1] WARNING" not in said
