"""Every command of docs/synthesis.md works, in its order, on its own files."""

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.report.bottleneck import bottleneck
from headrace.topology import Topology

TEXT = (Path(__file__).parent.parent / "docs" / "synthesis.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Arguments after ``$ headrace`` in the console blocks."""
    lines = "".join(blocks("console")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]
    return [words[1:] for words in found if words[0] == "headrace"]


@pytest.mark.sampled(2, of="commands of pages")
def test_a_newcomer_can_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("topo.txt").write_text(blocks("text")[0])
    Path("sketch.json").write_text(blocks("json")[0])
    verbs = []
    for words in commands():
        outcome = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
        assert outcome.exception is None, f"{' '.join(words)}: {outcome.exception!r}"
        assert outcome.exit_code == 0, f"{' '.join(words)}: {outcome.output}"
        # the chunks that win depend on the time the search had; the page explains this one
        output = outcome.output.replace("warning: the plan is meant for", "")
        assert "warning:" not in output, f"{' '.join(words)}: {outcome.output}"
        verbs.append(words[0])
    assert verbs == [
        *("topology", "show", "report"),
        *("collectives", "collectives"),
        *("show", "report", "verify", "export", "verify"),
        *("collectives", "report"),
    ]
    check_what_the_text_says()


def check_what_the_text_says() -> None:
    cluster = Topology.load("cluster.topology")
    assert (cluster.ranks, len(cluster.hosts), len(cluster.shared)) == (16, 2, 4)
    demand = Demand(collective=Collective.ALLGATHER, ranks=16)
    cut = bottleneck(cluster, demand, 16 << 20)
    assert cut is not None
    assert cut.ranks in (tuple(range(8)), tuple(range(8, 16)))
    assert 1e3 * cut.mb_per_us == pytest.approx(12.5)
    assert f"so {cut.mb / cut.mb_per_us:.0f} us are the least" in TEXT
    assert Path("allgather.xml").read_text().startswith("<algo")
    for page in ("cluster.html", "allgather.html", "book.html"):
        assert Path(page).read_text().startswith("<!DOCTYPE html>")


def test_the_gain_of_search_on_the_executors_networks_is_the_kept_one() -> None:
    results = Path(__file__).parent.parent / "benchmarks" / "synthesis" / "results"
    (kept,) = results.glob("kept-*.json")
    rows = json.loads(kept.read_text())["tables"]["real links"]
    ratios = [row["over_template"] for row in rows]
    text = " ".join(TEXT.split())
    assert f"of {len(ratios)} calls" in text
    spread = f"from {min(ratios):.2f} to {max(ratios):.2f}"
    assert f"median of {statistics.median(ratios):.2f}, {spread}" in text
