"""Which tests a tier has, and that a sample is repeated by its seed: by one process and by two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import Sample, case

SAMPLED = pytest.mark.sampled(1)

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

@pytest.mark.slow
def test_tail(): pass

def test_ordinary(): pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", range(40))
def test_few(k): pass

@pytest.mark.sampled(2)
def test_few_more(): pass

@pytest.mark.sampled(1, of="jobs")
def test_job_of_two(): pass

@pytest.mark.sampled(1, of="jobs")
@pytest.mark.parametrize("ranks", range(3, 20))
def test_job(ranks): pass

def test_some(sample):
    assert sample.of(range(1000), 2) == list(range(1000)), "a sample"
"""
PROPERTY = """
from hypothesis import given, settings
from hypothesis import strategies as st

numbers = []

@settings(max_examples=30, database=None)
@given(st.integers())
def test_property(number):
    numbers.append(number)

def teardown_module():
    print("examples", *numbers)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow: tail\n    sampled(count, of): some\n"
    )
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("tests.tiers",)\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[list[str], str]:
    """Names of the tests that passed and failed, in order, and all that was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    names = sorted(re.findall(r"^(?:PASSED|FAILED) test_it.py::(\S+)", done.stdout, re.M))
    return names, done.stdout


@SAMPLED
def test_the_fast_tier_has_samples_that_its_seed_repeats(project: Path) -> None:
    names, text = run(project, "--tier", "fast")
    few = [name for name in names if name.startswith("test_few")]
    assert len(few) == 3
    (job,) = [name for name in names if name.startswith("test_job")]
    assert names == [*few, job, "test_ordinary", "test_some"]
    (seed,) = set(re.findall(r"--sample-seed (\d+)", text))
    assert f"tier: fast; samples: --sample-seed {seed}" in text
    assert f"repeat it with --tier fast --sample-seed {seed}" in text
    (found,) = re.findall(r"assert (\[\d+, \d+\]) ==", text)
    again, text = run(project, "--tier", "fast", "--sample-seed", seed, "-n", "2")
    assert again == names
    assert found in text
    names, _ = run(project, "--tier", "fast", "--sample-seed", str(int(seed) + 1))
    assert names != again


def test_the_slow_tier_has_the_rest_and_the_whole_of_what_is_sampled(project: Path) -> None:
    few = [*sorted(f"test_few[{k}]" for k in range(40)), "test_few_more"]
    few += sorted(["test_job_of_two", *(f"test_job[{ranks}]" for ranks in range(3, 20))])
    names, text = run(project, "--tier", "slow", "-n", "0")
    assert names == [*few, "test_some", "test_tail"]
    assert "repeat it" not in text
    assert "1 deselected" in text
    assert run(project)[0] == [*few, "test_ordinary", "test_some", "test_tail"]


@SAMPLED
def test_the_fast_tier_has_a_part_of_a_propertys_examples_that_its_seed_repeats(
    project: Path,
) -> None:
    (project / "test_it.py").write_text(PROPERTY)

    def examples(*arguments: str) -> list[str]:
        _, text = run(project, "-s", *arguments)
        (line,) = re.findall(r"examples (.*)$", text, re.M)
        return line.split()

    part = examples("--tier", "fast", "--sample-seed", "7")
    assert len(part) == 6
    assert examples("--tier", "fast", "--sample-seed", "7") == part
    assert examples("--tier", "fast", "--sample-seed", "8") != part
    assert len(examples("--tier", "slow")) == 30


@SAMPLED
def test_two_processes_draw_one_sample(project: Path) -> None:
    names, text = run(project, "--tier", "fast", "-n", "2")
    assert len(names) == 6  # xdist refuses processes that collected different tests
    assert "tier: fast; samples: --sample-seed" in text


def test_a_sample_keeps_the_order_and_is_whole_without_a_seed() -> None:
    items = list(range(50))
    kept = Sample(7).of(items, 10)
    assert len(set(kept)) == 10
    assert kept == sorted(kept) == Sample(7).of(items, 10)
    assert kept != Sample(8).of(items, 10)
    assert Sample(None).of(items, 10) == items == Sample(7).of(items, 50)


def test_a_case_is_named_in_what_fails() -> None:
    with pytest.raises(ValueError, match="wrong") as caught, case("ring", 3):
        raise ValueError("wrong")
    assert caught.value.__notes__ == ["case: ring, 3"]
