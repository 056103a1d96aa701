"""Every example runs as its first lines say."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from benchmarks.instruments.integrations import (
    DEADLINE_S,
    INTEGRATIONS,
    Integration,
    run_integration,
)
from headrace.testbed import privileges
from tests.conformance import warm
from tests.conformance.launch import outputs, ranks
from tests.waiting import HANG_S, JOB_S

EXAMPLES = Path(__file__).parents[1] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*command: str | Path, cwd: Path) -> str:
    # the programs of this interpreter's environment, whether it is activated or not
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={
            **warm.environment(),
            "PATH": path,
            "HEADRACE_CACHE": str(cwd / "cache"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that all it started can be ended together
    ) as process:
        try:
            said, _ = process.communicate(timeout=JOB_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            said, _ = process.communicate(timeout=HANG_S)
            pytest.fail(f"not done after {JOB_S} s; it said:\n{said}")
    assert process.returncode == 0, said
    return said


@pytest.fixture
def installed() -> None:
    if not entry_points(group="torch.backends", name="headrace") or not shutil.which(
        "headrace", path=str(Path(sys.executable).parent)
    ):
        pytest.fail("headrace is not installed in this environment: see make test")


def accuracy(said: str) -> float:
    (line,) = [line for line in said.splitlines() if "accuracy" in line]
    return float(line.rsplit(maxsplit=1)[1].rstrip("%"))


@pytest.mark.sampled(1)
def test_01_train_under_torchrun(installed: None, tmp_path: Path) -> None:
    job = warm.command(str(EXAMPLES / "01-train.py"))
    said = run(*warm.command(*TORCHRUN, "--no-python", *job), cwd=tmp_path)
    assert accuracy(said) > 85


def test_01_train_is_one_line_away_from_gloo() -> None:
    lines = (EXAMPLES / "01-train.py").read_text().splitlines()
    code = [line for line in lines if "headrace" in line and line.startswith("    dist.")]
    assert code == ['    dist.init_process_group("headrace")  # was: "gloo"']
    assert not [line for line in lines if line.startswith(("import headrace", "from headrace"))]


@pytest.mark.sampled(1)
def test_02_plan_on_a_laptop(tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "02-plan-on-a-laptop.py", "a.book", cwd=tmp_path)
    assert "lower bound" in said
    proven = run(sys.executable, "-m", "headrace", "verify", "a.book", cwd=tmp_path)
    assert "programs proven" in proven


@pytest.mark.sampled(1)
def test_05_compress_on_forked_ranks(installed: None) -> None:
    with ranks(2, EXAMPLES / "05-compress.py") as processes:
        first, second = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], first + second
    check_05_compress(first)


@pytest.mark.slow
@pytest.mark.parametrize("start", [(), TORCHRUN])
def test_05_compress(installed: None, tmp_path: Path, start: tuple[str, ...]) -> None:
    check_05_compress(run(sys.executable, *start, EXAMPLES / "05-compress.py", cwd=tmp_path))


def check_05_compress(said: str) -> None:
    assert accuracy(said) > 85
    (share,) = [line for line in said.splitlines() if line.startswith("minmax:4: ")]
    assert float(share.split()[1].rstrip("%")) < 15  # 4 bits of 32, and what is left alone


@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
def test_15_fsdp2_has_as_many_batches_on_every_rank(ranks: int) -> None:
    """With 7 or 8 ranks some had a batch more than others, and the job failed."""
    batches = runpy.run_path(str(EXAMPLES / "15-fsdp2.py"))["batches"]
    shares = [batches(rank, ranks) for rank in range(ranks)]
    assert {len(share) for share in shares} == {1797 // ranks // 32}
    assert {len(inputs) for share in shares for inputs, _ in share} <= {32}


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + HANG_S)
@pytest.mark.parametrize("integration", INTEGRATIONS, ids=lambda integration: integration.name)
def test_integrations(installed: None, tmp_path: Path, integration: Integration) -> None:
    """Frameworks that refuse the backend's name wrap the model where a group exists, and more."""
    if missing := integration.missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    problem, said = run_integration(integration, tmp_path, environment=warm.environment())
    assert problem == "", said
    if integration.name.endswith("compressed"):
        (share,) = re.findall(r"^minmax:4: (\S+)% of the ", said, re.M)
        assert float(share) < 30


NO_GPU = """
from accelerate import Accelerator
from torch import nn
from headrace.torch import init_from_torchrun
init_from_torchrun()
accelerator = Accelerator(cpu=False)
model = accelerator.prepare(nn.Linear(2, 2))
# One write: those of two ranks may alternate.
print(f"{accelerator.num_processes} {type(model).__name__}\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_accelerate_without_a_gpu_trains_every_rank_by_itself(
    installed: None, tmp_path: Path
) -> None:
    """As the README warns: when Accelerate changes this, the warning can go."""
    pytest.importorskip("accelerate")
    if torch.cuda.is_available():
        pytest.skip("needs a host without a GPU")
    (tmp_path / "train.py").write_text(NO_GPU)
    said = run(sys.executable, *TORCHRUN, tmp_path / "train.py", cwd=tmp_path)
    assert said.count("1 Linear") == 2


@pytest.mark.sampled(1)
def test_06_fit(tmp_path: Path) -> None:
    said = run(*warm.command(str(EXAMPLES / "06-fit.py")), cwd=tmp_path)
    planned = re.search(r"budget 12MiB: predicted peak (\S+) MiB, \S+ ms", said)
    eager = re.search(r"eager's step: measured peak (\S+) MiB, \S+ ms", said)
    assert planned is not None
    assert eager is not None
    assert float(planned[1]) <= 12 < float(eager[1])
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0]


@pytest.mark.sampled(1)
def test_07_index(tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "07-index.py", cwd=tmp_path)
    assert "65536 of 65537 found; the last value is 7" in said
    assert "recorded: 131073 operations on 100% of the keys" in said


@pytest.mark.sampled(1)
def test_07_index_in_cpp_is_compiled_with_the_packages_headers(tmp_path: Path) -> None:
    from headrace.index import include

    flags = ("-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    source = EXAMPLES / "07-index.cpp"
    run("g++", *flags, "-I", include(), source, "-o", tmp_path / "index", cwd=tmp_path)
    said = run(tmp_path / "index", cwd=tmp_path)
    assert said.splitlines() == [
        "100000 keys, -9999.5 is in row 2",
        "0 -> 40000",
        "0.125 -> 7",
        "0.5 -> 40002",
    ]


PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(user LANGUAGES CXX)
find_package(headrace 0.1 REQUIRED CONFIG)
add_executable(index "{source}")
target_link_libraries(index PRIVATE headrace::index)
"""


def installed_headers(cmake: str | Path, folder: Path) -> Path:
    """Install the headers of the index, and return the folder for CMAKE_PREFIX_PATH."""
    root = EXAMPLES.parent
    run(cmake, "-S", root, "-B", "build", "-DHEADRACE_BINDINGS=OFF", cwd=folder)
    said = run(cmake, "--install", "build", "--prefix", folder / "prefix", cwd=folder)
    assert "Warning" not in said
    return folder / "prefix"


def test_headers_are_installed_by_the_cmake_of_the_system(tmp_path: Path) -> None:
    """The scripts of an installation failed, or warned, with versions before that of the wheel."""
    cmake = shutil.which("cmake", path="/usr/local/bin:/usr/bin")
    if cmake is None:
        pytest.skip("the system has no CMake")
    prefix = installed_headers(cmake, tmp_path)
    assert (prefix / "lib" / "cmake" / "headrace" / "headraceConfig.cmake").is_file()
    headers = {path.name for path in (prefix / "include" / "headrace" / "index").iterdir()}
    assert {"map.hpp", "durable.hpp", "row_map.hpp"} <= headers


@pytest.mark.slow
def test_07_index_in_cpp_is_built_with_an_installed_package(tmp_path: Path) -> None:
    cmake = Path(sys.executable).parent / "cmake"
    prefix = installed_headers(cmake, tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(source=EXAMPLES / "07-index.cpp"))
    run(cmake, "-S", ".", "-B", "user", f"-DCMAKE_PREFIX_PATH={prefix}", cwd=tmp_path)
    run(cmake, "--build", "user", cwd=tmp_path)
    assert "0.125 -> 7" in run(tmp_path / "user" / "index", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.root
def test_03_testbed(installed: None, tmp_path: Path) -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    said = run("sh", EXAMPLES / "03-testbed.sh", "out", cwd=tmp_path)
    templates, planned = said.split("== the plan book")
    assert accuracy(templates) == pytest.approx(accuracy(planned), abs=0.6)  # two images
    assert (tmp_path / "out" / "network.book").is_file()


@pytest.mark.slow
def test_04_synthesize(installed: None, tmp_path: Path) -> None:
    said = run("sh", EXAMPLES / "04-synthesize.sh", "out", cwd=tmp_path)
    free, rest = said.split("== with a sketch")
    sketched, exported = rest.split("== exported")
    assert "above the best" in free
    assert "sketch, 2 chunks a block" in sketched
    assert "proven as written" in exported
    assert "ok allgather of 16 GPUs, 0 warnings" in exported
    assert (tmp_path / "out" / "allgather.html").is_file()


@pytest.mark.sampled(1)
def test_10_exchange(tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "10-exchange.py", cwd=tmp_path)
    assert re.findall(r"rank (\d): 4 lookups and a checkpoint", said) == ["0", "1", "2"]


@pytest.mark.sampled(1)
def test_heads_share_keys(tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "11-heads.py", cwd=tmp_path)
    shares = re.findall(r"(\d+)% of the cache's bytes", said)
    assert shares == ["100", "75", "21", "75", "100"]


@pytest.fixture
def clicks(installed: None, tmp_path: Path) -> tuple[str, str]:
    for name, examples, seed in (("clicks.tsv", "12K", 0), ("later.tsv", "3K", 1)):
        options = ("--examples", examples, "--most-rows", "2000", "--seed", str(seed))
        run("headrace", "embeddings", "generate", "-o", name, *options, cwd=tmp_path)
    return "clicks.tsv", "later.tsv"


@pytest.mark.sampled(1)
def test_12_embeddings(clicks: tuple[str, str], tmp_path: Path) -> None:
    said = run(sys.executable, EXAMPLES / "12-embeddings.py", *clicks, cwd=tmp_path)
    assert min(map(float, re.findall(r"AUC of later clicks (\S+)", said))) > 0.6
    assert "epoch 2: " in said


def test_12_embeddings_without_its_files_says_how_to_make_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended in a TypeError."""
    monkeypatch.setattr(sys, "argv", ["12-embeddings.py"])
    with pytest.raises(SystemExit, match=r"12-embeddings\.py clicks\.tsv later\.tsv"):
        runpy.run_path(str(EXAMPLES / "12-embeddings.py"), run_name="__main__")


@pytest.mark.slow
def test_12_embeddings_with_two_trainers(clicks: tuple[str, str], tmp_path: Path) -> None:
    command = ("headrace", "embeddings")
    job = ("--trainers", "2", "--batch", "512", "--lookahead", "8")
    run(*command, "measure", "clicks.tsv", "-o", "clicks.profile", *job, cwd=tmp_path)
    run(
        *command, "plan", "clicks.profile", "-o", "job.plan", "--cache-memory", "4MiB", cwd=tmp_path
    )
    script = EXAMPLES / "12-embeddings.py"
    said = run(*command, "run", "job.plan", "--", script, *clicks, cwd=tmp_path)
    assert len(re.findall(r"\[trainer \d\] epoch 2: ", said)) == 2
