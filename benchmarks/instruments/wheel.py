"""A wheel as its users get it: installed in a clean environment, and tried there.

``python -m benchmarks.instruments.wheel DIST PLAN`` tries the wheel in a folder, and prints a line
for every step. The environment has no compiler in its PATH and no PyTorch, and the commands run
without the rights of root. What the wheel depends on is linked from this environment, which takes
a second; a benchmark has it installed instead.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.instruments.linked import link_distributions, required_names
from headrace.settings import child_environment

_DEADLINE_S = 300.0
_CONFINED = Path(__file__).with_name("confined.py")

QUERY = """
import numpy, headrace
keys = numpy.arange(0, 2_000_000, 2)
index = headrace.Index(keys, keys)
assert (index[keys[:1000]] == keys[:1000]).all()
"""
MISSING = "pip install 'headrace["
"""In the error of a command that needs an extra."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command in the clean environment, after its Python, and the code that it ends with."""

    name: str
    words: tuple[str, ...]
    code: int = 0
    prints: str = ""


HEADRACE = ("-m", "headrace")
STEPS = (
    Step(name="help", words=(*HEADRACE, "--help"), prints="compression"),
    Step(
        name="a plan verified",
        words=(*HEADRACE, "verify", "memory-plan.headrace"),
        prints="ok ",
    ),
    Step(name="an index queried", words=("-c", QUERY)),
    Step(
        name="a compression plan",
        words=(
            *(*HEADRACE, "compression", "plan", "--bundled", "resnet50", "--batch", "64"),
            *("--ranks", "64", "--bandwidth", "10Gbit/s", "-o", "job.plan"),
        ),
    ),
    Step(name="TLS inside", words=("-c", "import headrace._native as n; assert n.has_tls()")),
    Step(
        name="headers for find_package",
        words=(
            "-c",
            "import headrace.index; folder = headrace.index.include(); "
            "assert (folder / 'headrace/index/map.hpp').exists(), folder",
        ),
    ),
    Step(
        name="the doctor asked for a stage without torch",
        words=(*HEADRACE, "doctor", "index"),
        prints="can run",
    ),
    Step(
        name="a page, whose extra is missing",
        words=(*HEADRACE, "report", "memory-plan.headrace", "-o", "page.html"),
        code=2,
        prints=MISSING + "report]'",
    ),
    *(
        Step(name=name, words=(*HEADRACE, *words), code=2, prints=MISSING + "torch]'")
        for name, words in (
            ("a demo, whose extra is missing", ("demo",)),
            ("a profile, whose extra is missing", ("compression", "measure", "-o", "job.profile")),
        )
    ),
)
RESULTS = ("a plan verified", "an index queried", "a compression plan")
"""Steps that are results: a newcomer has them after installing the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of a step.

    Attributes
    ----------
    step : its name.
    seconds : from start to exit.
    problem : the difference from what it needs; empty if there is none.
    """

    step: str
    seconds: float
    problem: str = ""


def wheel_in(folder: Path) -> Path:
    """Return the wheel in a folder that has one."""
    (wheel,) = folder.glob("headrace-*.whl")
    return wheel


def clean_environment(folder: Path) -> Path:
    """Make a virtual environment with pip alone, and return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin" / "python"


def install_linked(wheel: Path, folder: Path) -> Path:
    """Make an environment with a wheel, and links to what it depends on; return its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    command = [*_pip(Path(sys.executable)), "--python", str(python), "install", "--quiet"]
    command += ["--no-deps", "--no-compile", str(wheel)]
    subprocess.run(command, check=True, timeout=_DEADLINE_S)
    (site,) = folder.glob("lib/python*/site-packages")
    (information,) = site.glob("headrace-*.dist-info")
    required = metadata.Distribution.at(information).requires or ()
    link_distributions(site, required_names(required))
    return python


def download(python: Path, wheel: Path, folder: Path) -> None:
    """Fetch the wheels of what a wheel depends on, so that installing it needs no network."""
    command = [*_pip(python), "download", "--quiet", "--dest", str(folder), str(wheel)]
    subprocess.run(command, check=True)


def try_steps(python: Path, folder: Path, plan: Path) -> list[Trial]:
    """Run all steps in a folder, without root if this process has it.

    Parameters
    ----------
    plan : a file with a memory plan, to verify.
    """
    shutil.copy(plan, folder / "memory-plan.headrace")
    return [_try(python, folder, step) for step in STEPS]


def _try(python: Path, folder: Path, step: Step) -> Trial:
    # no compiler, and nothing of the environment that these tests run in
    changes = {"PATH": str(python.parent), "HOME": str(folder), "PYTHONPATH": None}
    began = time.perf_counter()
    done = subprocess.run(
        [str(python), str(_CONFINED), "no-root", str(python), *step.words],
        cwd=folder,
        env=child_environment({**changes, "HEADRACE_CACHE": None, "COLUMNS": "200"}),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    seconds = time.perf_counter() - began
    printed = done.stdout + done.stderr
    problem = ""
    if done.returncode != step.code:
        problem = f"exit code {done.returncode}: {printed[-500:]}"
    elif step.prints not in printed:
        problem = f"{step.prints!r} is not printed: {printed[-500:]}"
    return Trial(step=step.name, seconds=seconds, problem=problem)


def contents_problems(wheel: Path) -> list[str]:
    """Return the files that a wheel lacks or should not have."""
    names = zipfile.ZipFile(wheel).namelist()
    needed = (
        "headrace/py.typed",
        "headrace/_native.pyi",
        "headrace/include/headrace/index/map.hpp",
        "headrace/lib/cmake/headrace/headraceConfig.cmake",
        "licenses/LICENSE",
        "licenses/licenses/OpenSSL.txt",
    )
    problems = [
        f"{name} is not in the wheel"
        for name in needed
        if not any(file.endswith(name) for file in names)
    ]
    foreign = [file for file in names if not file.startswith(("headrace/", "headrace-"))]
    return problems + [f"{file} is in the wheel" for file in foreign]


def _pip(python: Path) -> Sequence[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]


def main(arguments: Sequence[str]) -> int:
    """Try the wheel in a folder; return 1 if a step fails."""
    dist, plan = Path(arguments[0]), Path(arguments[1])
    wheel = wheel_in(dist)
    problems = contents_problems(wheel)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = install_linked(wheel, folder / "environment")
        (folder / "home").mkdir()
        for trial in try_steps(python, folder / "home", plan):
            print(f"{trial.step}: {trial.problem or 'ok'} ({trial.seconds:.1f} s)", flush=True)
            problems += [trial.problem] if trial.problem else []
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
