"""Links in the documents lead somewhere; commands that the README names exist."""

import json
import re
from pathlib import Path

import pytest

from headrace.demo.scenario import LOSS_TOLERANCE

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
GAINS = {
    "steps wait for the network": "demo-step-over-gloo-interleaved",
    "out of memory": "gpt-peak-over-checkpoint",
    "gradients fill the link": "auto-over-plain-100mbit",
    "lookups are slow": "python-find-over-searchsorted",
    "decoding reads a long cache": "int8-over-sdpa",
    "steps wait for embedding rows": "dlrm-over-pooled-1",
}
"""Symptoms of the README, and the bars whose figures it states."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document}: link to {target}"


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"(?:^\$ |`)make ([a-z-]+)", document.read_text(), re.MULTILINE)
    }
    assert {"demo", "test", "check", "sanitize", "bench"} <= named <= targets


def test_gains_that_the_readme_states_are_figures_of_kept_results() -> None:
    """A row per symptom: code, a gain linked to its kept result, the command, a page."""
    table = (ROOT / "README.md").read_text().split("| symptom |")[1].split("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == list(GAINS)
    for row, bar in zip(rows, GAINS.values(), strict=True):
        (gain,) = re.findall(r"\[([\d.]+)(%| times)\]\(benchmarks/([\w-]+)/(\S+\.json)\)", row)
        figure, unit, claim, result = gain
        bars = json.loads((ROOT / "benchmarks" / claim / result).read_text())["bars"]
        (value,) = (each["figure"] for each in bars if each["name"] == bar)
        digits = len(figure.partition(".")[2])
        scale = 100 if unit == "%" else 1
        assert f"{value * scale:.{digits}f}" == figure, row
        assert f"`make bench CLAIM={claim}" in row


def test_the_readme_shows_the_documented_run_of_the_demo() -> None:
    run = (ROOT / "docs" / "demo.md").read_text()
    figure = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0]
    found = re.findall(r"(Gloo|headrace|bound) +([░·█]+ [\d,]+ ms)", figure)
    assert [name for name, _ in found] == ["Gloo", "headrace", "bound"]
    for name, bar in found:
        assert re.search(rf"^  {name} +{bar}$", run, re.MULTILINE), name
    (speed_up,) = re.findall(r"([\d.]+x) as fast", figure)
    assert f" {speed_up} as fast" in run
    assert "the same loss" in figure
    assert re.search(r"loss on held-out images.* equal$", run, re.MULTILINE)


def test_the_documented_run_is_of_the_demo_as_it_is() -> None:
    """A line of every part of the report, as `demo.show` words it now."""
    run = (ROOT / "docs" / "demo.md").read_text()
    for line in (
        r"they make \d+ plans: one program can be best at several sizes",
        r"gradients: [\d.]+ MiB = [\d.]+ MiB \+ [\d.]+ MiB \+ [\d.]+ KiB in buckets",
        r"init_process_group\(\"headrace\"\): 14 steps measured, .*",
        r"headrace's allreduces, one after another",
    ):
        assert re.search(rf"^{line}$", run, re.MULTILINE), line
    tolerance = f"{LOSS_TOLERANCE:.0e}".replace("e-0", "e-")
    assert f"differ by at most {tolerance} of Gloo's" in " ".join(run.split())
