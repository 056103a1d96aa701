"""A wheel in a clean environment: its size, and the time from it to results."""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import ROOT, Report
from benchmarks.instruments import first_screen
from benchmarks.instruments import wheel as clean

_PROJECT = ROOT.parent
_PLAN = _PROJECT / "tests" / "golden" / "written" / "memory-plan.headrace"
_REPEATS = 9
_BUILD_DEADLINE_S = 1800


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {
        "wheel-mb": "<=8",
        "wheel-to-result-s": "<=60",
        "undocumented-steps": "<=0",
        "import-torch-added-ms": "<=20",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Build the wheel, install it and all that it depends on, and run what needs no PyTorch."""
    del quick  # installing takes most of the time
    _measure_import(report)
    subprocess.run(["make", "wheel"], cwd=_PROJECT, check=True, timeout=_BUILD_DEADLINE_S)
    wheel = clean.wheel_in(_PROJECT / "dist")
    report.bar("wheel-mb", wheel.stat().st_size / 1e6)
    report.note(f"the wheel is {wheel.name}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = clean.clean_environment(folder / "environment")
        clean.download(python, wheel, folder / "downloads")
        before = _bytes_in(folder / "environment")
        (folder / "home").mkdir()
        installation, *outcomes = _first_screen(report, python, wheel, folder)
        installed = _bytes_in(folder / "environment") - before
        seconds = installation.seconds
        failed = bool(installation.problem)
        problems = [outcome for outcome in (installation, *outcomes) if outcome.problem]
        report.bar("undocumented-steps", len(problems))
        for trial in clean.try_steps(python, folder / "home", _PLAN):
            report.row(
                "wheel", step=trial.step, seconds=round(trial.seconds, 1), problem=trial.problem
            )
            failed = failed or bool(trial.problem)
            seconds += trial.seconds if trial.step in clean.RESULTS else 0
    report.row("installation", megabytes=round(installed / 1e6), without="torch and other extras")
    report.bar("wheel-to-result-s", None if failed else round(seconds, 1))


def _first_screen(
    report: Report, python: Path, wheel: Path, folder: Path
) -> list[first_screen.Outcome]:
    """Run what the README prints, beginning with the installation, in a folder with the wheel."""
    shutil.copy(wheel, folder / "home")
    printed = first_screen.steps(first_screen.README.read_text())
    outcomes = first_screen.run_steps(printed, python, folder / "home", folder / "downloads")
    for outcome in outcomes:
        report.row(
            "README",
            step=outcome.step.text.splitlines()[0],
            seconds=round(outcome.seconds, 1),
            problem=outcome.problem,
        )
    return outcomes


def _measure_import(report: Report) -> None:
    """Time ``import torch`` with and without the registration of the backend, in turn."""
    times: dict[str, list[float]] = {"1": [], "0": []}
    for _ in range(_REPEATS + 1):  # the first ones read from disk
        for loads, elapsed in times.items():
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", "import torch"],
                env=clean.child_environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": loads}),
                check=True,
            )
            elapsed.append(1e3 * (time.perf_counter() - began))
    medians = {loads: statistics.median(elapsed[1:]) for loads, elapsed in times.items()}
    # of pairs, so that other work on the machine adds to both
    pairs = zip(times["1"][1:], times["0"][1:], strict=True)
    added = statistics.median(with_backend - without for with_backend, without in pairs)
    report.row(
        "import torch",
        with_backend_ms=round(medians["1"]),
        without_ms=round(medians["0"]),
        added_ms=round(added, 1),
    )
    report.bar("import-torch-added-ms", round(added, 1))


def _bytes_in(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(path.stat().st_size for path in files)
