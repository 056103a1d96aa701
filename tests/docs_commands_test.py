"""Commands of the pages of docs/ run, in their order, without a warning."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    "executor": Page(
        files=(copy_examples,),
        commands=(
            "topology preset uniform --ranks 4 -o cluster.topology",
            "collectives plan cluster.topology --collective allgather -o cluster.book",
        ),
        not_run={"collectives trace --testbed": "needs the rights to make network namespaces"},
    ),
}
SLOW = {"attention", "memory", "executor"}
"""Pages whose commands start processes, or take many seconds."""


def commands(page: str) -> list[str]:
    """Return the commands of a page's blocks, without ``headrace`` and comments."""
    text = (DOCS / f"{page}.md").read_text()
    fenced = re.findall(r"^```(.*?)\n(.*?)^```$", text, re.M | re.S)
    shell = [block for kind, block in fenced if kind in ("", "console")]
    shell += re.findall(r"^    (headrace .*\n)", text, re.M)  # indented blocks
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    joined = " && ".join(line.removeprefix("$ ").split(" #")[0] for line in lines)
    parts = [part.strip() for part in joined.split(" && ")]
    return [part.removeprefix("headrace ") for part in parts if part.startswith("headrace ")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PAGES]
)
@pytest.mark.sampled(3, of="commands of pages")
def test_commands_of_the_pages_run_without_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of these pages ran in no test, so that one that fails or warns went unnoticed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    page = PAGES[name]
    for write in page.files:
        write()
    runnable = [line for line in commands(name) if not line.startswith(tuple(page.not_run))]
    assert runnable
    for text, stand_in in page.smaller.items():
        assert any(text in line for line in runnable), text
        runnable = [line.replace(text, stand_in) for line in runnable]
    for line in [*page.commands, *runnable]:
        outcome = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "200"})
        assert outcome.exception is None, f"{line}: {outcome.exception!r}"
        assert outcome.exit_code == 0, f"{line}: {outcome.output}"
        assert "warning:" not in outcome.output, f"{line}: {outcome.output}"


def test_commands_that_do_not_run_are_still_in_the_pages() -> None:
    for name, page in PAGES.items():
        for start in page.not_run:
            assert any(line.startswith(start) for line in commands(name)), start
