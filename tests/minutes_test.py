"""Minutes of tests by capability: of one process and of two, of several runs, and budgets."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.minutes import capability, main, summary

ROOT = Path(__file__).parent.parent
PROJECT = {
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    "tests/collectives/plan/test_two.py": "def test_one(): pass\n\ndef test_two(): pass\n",
    "tests/test_other.py": """
import subprocess, sys
CODE = "import os\\nwhile sum(os.times()[:2]) < 0.6: pass"

def test_other():
    subprocess.run([sys.executable, "-c", CODE])
""",
    "conftest.py": """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    report.duration = {"setup": 1.0, "call": 4.0, "teardown": 1.0}[call.when]
    return report
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def pytest_in(project: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.minutes", *arguments]
    return subprocess.run(command, cwd=project, env={"PYTHONPATH": str(ROOT)}).returncode


@pytest.mark.slow
def test_every_run_adds_its_seconds(project: Path) -> None:
    found = project / "seconds"
    arguments = ("--minutes", str(found), "--dist", "loadfile")
    assert pytest_in(project, *arguments, "-n", "0") == 0
    assert pytest_in(project, *arguments, "-n", "2") == 0
    assert pytest_in(project, *arguments, "-n", "0", "-k", "nothing") == 5
    alone, two, none = (json.loads(line) for line in found.read_text().splitlines())
    assert none == {}
    for line, processes in ((alone, 1), (two, 2)):
        assert set(line) == {"collectives", "shared"}
        assert [line["collectives"][0], line["shared"][0]] == [12 / processes, 6 / processes]
        assert line["collectives"][1] < 0.3
        assert 0.5 < line["shared"][1] < 3  # its child's


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/collectives/plan/test_lower.py::test_x[tests/solver/a]", "collectives"),
        ("tests/solver/test_solver.py::test_x[tests/collectives/a]", "shared"),
        ("tests/collectives_test.py::test_x", "shared"),
        ("tests/cli/collectives/test_x.py::test_x", "shared"),
        ("test_x.py::test_x", "shared"),
    ],
)
def test_a_test_is_of_its_folders_capability(nodeid: str, name: str) -> None:
    assert capability(nodeid) == name


def test_budgets_are_of_processor_time_of_capabilities_together() -> None:
    minutes = {"shared": (20.0, 3.0), "collectives": (30.0, 3.7)}
    assert summary("fast", minutes, 16.0) == [
        "minutes of tests: collectives 30.0 (3.7 of processors), shared 20.0 (3.0 of processors); "
        "native and Python together 16.0"
    ]
    assert summary("fast", minutes | {"shared": (20.0, 3.1)}, 16.0)[1:] == [
        "minutes of tests: collectives and shared 6.8 of processors, "
        "more than 1.5 times the budget of 4.5"
    ]
    assert summary("fast", {}, 0.25) == ["minutes of tests: none; native and Python together 0.2"]
    assert len(summary("slow", {"shared": (90.0, 90.0)}, 90.0)) == 1
    assert len(summary("slow", {"shared": (90.0, 90.1)}, 90.0)) == 2


def test_runs_are_summed_and_the_total_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"began": time.time() - 300},
        {"shared": [60.0, 60.0]},
        {},
        {"shared": [60.0, 36.0], "collectives": [30.0, 12.0], "compression": [90.0, 60.0]},
    ]
    seconds, total = tmp_path / "seconds", tmp_path / "total"
    seconds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["fast", str(seconds), str(total)])
    assert capsys.readouterr().out.startswith(
        "minutes of tests: collectives 0.5 (0.1 of processors), "
        "compression 1.5 (0.5 of processors), shared 2.0 (0.8 of processors); "
    )
    elapsed, exceeded = total.read_text().split()
    assert 5 <= float(elapsed) < 6
    assert exceeded == "0"
    lines.append({"shared": [60.0, 1800.0]})
    seconds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["fast", str(seconds), str(total)])
    assert "times the budget of 4.5" in capsys.readouterr().out
    assert total.read_text().split()[1] == "1"
    main(["slow", str(seconds), str(total)])
    assert total.read_text().split()[1] == "0"
