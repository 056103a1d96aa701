"""A package that is not installed is one line with its command, in every verb."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import JOB_S


def _run(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from headrace.cli.main import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("package", "distribution", "words"),
    [
        ("numpy", "numpy", ("show", "x")),
        ("typer", "typer", ("--help",)),
        ("rich", "rich", ("show", "x")),
    ],
)
def test_it_is_named_with_its_command(
    package: str, distribution: str, words: tuple[str, ...]
) -> None:
    done = _run(package, *words)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error: this command needs the package {distribution}: pip install '")
    assert "headrace doctor" in line


def test_a_missing_native_module_is_one_line() -> None:
    done = _run("headrace._native", "index", "run", "x.npz")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_accesses_are_measured_without_torch(tmp_path: Path) -> None:
    """With `--no-rates`, too, the command began by importing what measures processor time."""
    clicks = tmp_path / "clicks.tsv"
    clicks.write_text(("1" + "\t" * 13 + "\tff" * 26 + "\n") * 40, "utf-8")
    measure = ("embeddings", "measure", str(clicks), "-o", str(tmp_path / "clicks.profile"))
    done = _run("torch", *measure, "--batch", "4", "--lookahead", "2", "--no-rates")
    assert done.returncode == 0, done.stderr


def test_what_needs_torch_alone_is_named_with_the_option_that_leaves_it_out() -> None:
    """The error named the package alone: planning is for machines without it, too."""
    done = _run("torch", "embeddings", "measure", "x.tsv", "-o", "x.profile")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "--no-rates" in line
    assert line.endswith("needs the package torch: pip install 'headrace[torch]'")
