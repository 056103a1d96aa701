"""Examples of headrace inside other tools: what each needs, how it starts, and what it prints."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.extras import is_installed

EXAMPLES = Path(__file__).parents[2] / "examples"
_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_NOTEBOOK = (
    "import sys, nbformat; from nbclient import NotebookClient;"
    " notebook = nbformat.read(sys.argv[1], 4);"
    " NotebookClient(notebook, timeout=int(sys.argv[2])).execute();"
    " print(nbformat.writes(notebook))"
)
"""Program that runs a notebook in a kernel of its own, and prints it with its outputs."""

_PORT = "{port}"
"""Of arguments: stands for a port that is free."""

DEADLINE_S = 1500
"""Of one example, far above its time on a machine with other work: what is not done then hangs."""

_END_S = 30
_TRAINED = ("backend headrace, model DistributedDataParallel", "ranks equal: True")
_COMPRESSED = (r"minmax:4: [12]?\d\.\d% of the",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Integration:
    """One example.

    Attributes
    ----------
    name : the tool, and what is shown with it where it has several examples.
    packages : modules that the example imports, beside headrace's own dependencies.
    arguments : of Python, in an empty folder.
    prints : regular expressions that its output has.
    """

    name: str
    packages: tuple[str, ...] = ()
    arguments: tuple[str, ...]
    prints: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package in self.packages if not is_installed(package)]


def _script(name: str, *, ranks: bool = False) -> tuple[str, ...]:
    return (*(_RANKS if ranks else ()), str(EXAMPLES / name))


INTEGRATIONS = (
    Integration(
        name="Accelerate",
        packages=("accelerate",),
        arguments=_script("08-accelerate.py", ranks=True),
        prints=_TRAINED,
    ),
    Integration(
        name="Accelerate, compressed",
        packages=("accelerate",),
        arguments=_script("05-compress-accelerate.py", ranks=True),
        prints=_COMPRESSED,
    ),
    Integration(
        name="Trainer",
        packages=("accelerate", "transformers"),
        arguments=_script("09-trainer.py", ranks=True),
        prints=_TRAINED,
    ),
    Integration(
        name="Trainer, compressed",
        packages=("accelerate", "transformers", "tensorboard"),
        arguments=_script("05-compress-trainer.py", ranks=True),
        prints=_COMPRESSED,
    ),
    Integration(
        name="Lightning",
        packages=("lightning",),
        arguments=_script("13-lightning.py"),
        prints=_TRAINED,
    ),
    Integration(
        name="Lightning, compressed",
        packages=("lightning",),
        arguments=_script("05-compress-lightning.py"),
        prints=_COMPRESSED,
    ),
    Integration(
        name="Ray Train",
        packages=("ray",),
        arguments=_script("14-ray-train.py"),
        prints=_TRAINED,
    ),
    Integration(
        name="FSDP2, compressed",
        arguments=_script("15-fsdp2.py", ranks=True),
        prints=("backend headrace, model FSDPSequential", "ranks equal: True", *_COMPRESSED),
    ),
    Integration(
        name="torch.compile",
        arguments=_script("16-compile.py", ranks=True),
        prints=("backend headrace, model OptimizedModule", "ranks equal: True"),
    ),
    Integration(
        name="Jupyter",
        packages=("nbclient", "ipykernel"),
        arguments=("-c", _NOTEBOOK, str(EXAMPLES / "17-notebook.ipynb"), str(DEADLINE_S)),
        prints=(r"planning for 5 MiB: .* s\)", "<table><caption>memory plan", r"loss \d"),
    ),
    Integration(
        name="Prometheus",
        packages=("prometheus_client",),
        arguments=(*_script("18-metrics.py"), _PORT),
        prints=("headrace_index_keys", "headrace_memory_peak_bytes", "headrace_compression_steps"),
    ),
    Integration(
        name="Perfetto",
        arguments=_script("19-perfetto.py"),
        prints=(r"trace\.json: [1-9]\d* slices",),
    ),
)


def run_integration(
    integration: Integration,
    folder: Path,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Run an example in a process of its own.

    All that it started is ended with it.

    Parameters
    ----------
    folder : empty, for what it writes; its home and headrace's cache, too.
    environment : of the process; None: this one's.

    Returns
    -------
    tuple[str, str]
        The problem, "" if there is none, and the output.
    """
    if missing := integration.missing:
        return f"not installed: {', '.join(missing)}", ""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    written = folder / "output.txt"
    with (
        written.open("wb") as output,
        subprocess.Popen(
            [sys.executable, *map(_argument, integration.arguments)],
            cwd=folder,
            env={
                **(os.environ if environment is None else environment),
                "PATH": programs,
                "HOME": str(folder),
                "HEADRACE_CACHE": str(folder / "cache"),
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(round(deadline_s)),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        problem = _end_of(process, deadline_s)
    text = written.read_text(errors="replace")
    if not problem:
        absent = [line for line in integration.prints if not re.search(line, text)]
        problem = f"did not print {absent[0]!r}" if absent else ""
    return problem, text


def _argument(text: str) -> str:
    if text != _PORT:
        return text
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _end_of(process: "subprocess.Popen[bytes]", deadline_s: float) -> str:
    """Wait for a process, and end what it leaves; return the problem."""
    try:
        code = process.wait(deadline_s)
        return f"exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"not done after {deadline_s:.0f} s"
    finally:
        _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            return
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            continue
