"""Commands of the pages of docs/: what each page takes as there, and which do not run here.

A block of Python whose first line is ``# NAME.py`` is that file.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.compression.profile import (
    CodecTiming,
    CompressionProfile,
    GradientBucket,
    ModelTensor,
)
from headrace.settings import child_environment
from tests.collectives.measure.imports.iperf_json import result

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

MODULE = """
import torch
from torch import nn

def build():
    return build_batch(8)

def build_batch(batch):
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return network, (torch.randn(batch, 8),)
"""


def write_compression_profile() -> None:
    """Write a measured profile of one matrix, in place of minutes of `compression measure`."""
    timing = CodecTiming(elements=(250_000,), encode_us=(100.0,), decode_us=(50.0,))
    CompressionProfile(
        model="matrix",
        device="cpu",
        batch=1,
        tensors=(ModelTensor(name="weight", shape=(250, 1000)),),
        buckets=(GradientBucket(tensors=1, ready_us=9000.0),),
        forward_us=1000.0,
        backward_us=9000.0,
        codecs={"bf16": timing, "sign": timing, "powersgd:4": timing},
        provenance={"kind": "measured", "source": "a test"},
    ).save("job.profile")


def write_module() -> None:
    """Write the module whose functions the page of memory names."""
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/module.py").write_text(MODULE)


def write_trace() -> None:
    """Write a trace of keys that are found, and of new ones."""
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(1)
    keys = random.choice(1 << 40, 20_000, replace=False)
    operations = np.repeat([4, 0, 1], [10_000, 10_000, 5_000])
    column = np.concatenate(
        [keys[:10_000], random.choice(keys[:10_000], 10_000), keys[10_000:15_000]]
    )
    pandas.DataFrame({"key": column, "operation": operations}).to_parquet("trace.parquet")


def write_sketch() -> None:
    """Write the sketch of the page of synthesis."""
    (sketch,) = re.findall(
        r"^```json\n(.*?)^```$", (DOCS / "synthesis.md").read_text(), re.M | re.S
    )
    Path("sketch.json").write_text(sketch)


def copy_examples() -> None:
    """Copy the examples' testbed, which the page names."""
    Path("examples").mkdir()
    Path("examples/testbed-2x2.toml").write_bytes((ROOT / "examples/testbed-2x2.toml").read_bytes())


def write_bandwidths() -> None:
    """Write results of iperf3 between four hosts: two racks behind an uplink."""
    for first, second in combinations("abcd", 2):
        mbit = 940.0 if {first, second} in ({"a", "b"}, {"c", "d"}) else 240.0
        run = result(f"10.0.0.{first}", f"10.0.0.{second}", mbit, at=int(time.time()))
        Path(f"{first}-to-{second}.json").write_text(json.dumps(run))


def write_attention_model() -> None:
    """Write a small model and its tokenizer."""
    pytest.importorskip("transformers")
    from tests.attention.folders import write_model
    from tests.attention.models import with_copied_heads

    write_model(Path("model"), with_copied_heads())


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page whose commands run.

    Attributes
    ----------
    files : functions that write files which the page takes as there.
    commands : that write the others.
    not_run : starts of commands that do not run here, and why.
    smaller : texts of the page by what stands for them here.
    """

    files: tuple[Callable[[], None], ...] = ()
    commands: tuple[str, ...] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    smaller: Mapping[str, str] = field(default_factory=dict)


PAGES = {
    "attention": Page(
        files=(write_attention_model,),
        not_run={
            "attention evaluate ./model --plan model.plan --tasks": "needs lm-eval and its data",
            "attention evaluate ./model --plan chai.plan --tasks piqa": "downloads data",
        },
        smaller={"--samples 1024": "--samples 8 --sample-tokens 64", "--skip 64": "--skip 8"},
    ),
    "compression": Page(
        files=(write_compression_profile,),
        commands=(
            "topology preset uniform --ranks 4 -o cluster.topology",
            "collectives plan cluster.topology -o cluster.book",
        ),
        not_run={"compression measure": "takes a model of the user's and minutes"},
    ),
    "export": Page(
        commands=(
            "topology preset ndv2_taccl_1mb --nodes 1 -o cluster.topology",
            "collectives synthesize cluster.topology --collective allreduce --size 1050624 -o plan"
            " --effort quick",
            "collectives plan cluster.topology --collective allgather -o book",
        ),
    ),
    "sketch-format": Page(
        files=(write_sketch,),
        commands=("topology preset ndv2_taccl_1mb --nodes 2 -o cluster.topology",),
    ),
    # the network of the test has a few hundred weights: a batch of 6 GiB takes minutes of its step
    "memory": Page(files=(write_module,), smaller={"GiB": "MiB"}),
    "index": Page(files=(write_trace,)),
    "doctor": Page(),
    "embeddings": Page(
        not_run={
            "embeddings run": "takes a script of the user's, and other machines",
            "show job.record": "of such a run",
            "report job.record": "of such a run",
        },
        smaller={"--examples 1M": "--examples 100K"},
    ),
    "tutorials/network": Page(files=(write_bandwidths,)),
    "tutorials/memory": Page(),
    "tutorials/compression": Page(),
    "tutorials/index": Page(),
    "tutorials/attention": Page(
        files=(write_attention_model,),
        smaller={
            "measure ./model": "measure ./model --samples 8 --sample-tokens 64",
            "--skip 64": "--skip 8",
        },
    ),
    "tutorials/embeddings": Page(),
    "executor": Page(
        files=(copy_examples,),
        commands=(
            "topology preset uniform --ranks 4 -o cluster.topology",
            "collectives plan cluster.topology --collective allgather -o cluster.book",
        ),
        not_run={"collectives trace --testbed": "needs the rights to make network namespaces"},
    ),
}
SLOW = {
    "attention",
    "memory",
    "executor",
    "tutorials/memory",
    "tutorials/compression",
    "tutorials/attention",
    "tutorials/embeddings",
}
"""Pages whose commands start processes, or take many seconds."""


def commands(page: str) -> list[str]:
    """Return the commands of a page's blocks without comments: of headrace, and of its files."""
    text = (DOCS / f"{page}.md").read_text()
    fenced = re.findall(r"^```(.*?)\n(.*?)^```$", text, re.M | re.S)
    shell = [block for kind, block in fenced if kind in ("", "console")]
    shell += re.findall(r"^    (headrace .*\n)", text, re.M)  # indented blocks
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    joined = " && ".join(line.removeprefix("$ ").split(" #")[0] for line in lines)
    starts = ("headrace ", *(f"python {name}" for name in scripts(page)))
    return [part.strip() for part in joined.split(" && ") if part.strip().startswith(starts)]


def scripts(page: str) -> dict[str, str]:
    """Return the files of Python that a page has, by their names."""
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    named = [(re.match(r"# ([\w-]+\.py)\n", block), block) for block in blocks]
    return {name[1]: block for name, block in named if name}


def problems(name: str) -> Iterator[str]:
    """Run a page's commands in the current folder; yield those that fail or warn, with a cause.

    Raises
    ------
    LookupError : if a text that is to be made smaller is in no command.
    """
    page = PAGES[name]
    for write in page.files:
        write()
    for file, code in scripts(name).items():
        Path(file).write_text(code)
    runnable = [
        line
        for line in commands(name)
        if not line.removeprefix("headrace ").startswith(tuple(page.not_run))
    ]
    for text, stand_in in page.smaller.items():
        if not any(text in line for line in runnable):
            raise LookupError(f"{name}.md: no command that runs has {text!r}")
        runnable = [line.replace(text, stand_in) for line in runnable]
    for line in [*(f"headrace {command}" for command in page.commands), *runnable]:
        if problem := _problem(shlex.split(line)):
            yield f"{name}.md: {line}: {problem}"


def _expanded(word: str) -> list[str]:
    """Return a word as a shell passes it on."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def _problem(words: list[str]) -> str:
    changes = {"COLUMNS": "200", "HEADRACE_CACHE": str(Path("cache").resolve())}
    if words[0] == "python":
        done = subprocess.run(
            [sys.executable, *words[1:]],
            env=child_environment(changes),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stderr if done.returncode or "warning" in done.stderr.lower() else ""
    words = [path for word in words for path in _expanded(word)]
    outcome = CliRunner().invoke(app, words[1:], env=changes)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        return repr(outcome.exception)
    return outcome.output if outcome.exit_code != 0 or "warning:" in outcome.output else ""
