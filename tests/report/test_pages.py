"""Pages are whole by themselves: parsed, not looked at."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.artifact import Artifact
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.collectives.report import gantt as gantt_module
from headrace.collectives.report.gantt import gantt
from headrace.collectives.report.timeline import timeline
from headrace.errors import ArtifactError
from headrace.report.graph import MAX_LINES, draw_topology
from headrace.report.pages import page_of
from headrace.topology import Topology
from headrace.topology.presets import dgx2_taccl_1mb, ndv2_taccl_1mb, racks, ring, torus
from tests.report.small import relay

MAX_BYTES = 12_000_000

PROFILE = Path(__file__).parents[1] / "golden" / "written" / "profile.headrace"
RACKS = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
RESULT: dict[str, Any] = {
    "claim": "synthesis",
    "quick": False,
    "started": "2026-01-01",
    "machine": {"cores": 2},
    "versions": {"python": "3.11"},
    "tables": {
        "curves": [
            {"maker": name, "size": size, "gb_per_s": 1.5 * index, "won": True}
            for name in ("ring", "tree")
            for index, size in enumerate(("1 KiB", "1 MiB", "1 GiB"), start=1)
        ],
        "gaps": [{"case": "NDv2 x1 <allgather>", "gap": 0.01}, {"case": "other", "gap": None}],
    },
    "notes": ["two cores & open solvers"],
    "bars": [
        {"name": "gap", "figure": 0.01, "required": "<= 0.02", "ok": True},
        {"name": "speed", "figure": None, "required": ">= 5", "ok": False},
        {"name": "large", "figure": None, "required": ">= 5", "ok": False, "skipped": True},
    ],
}


class Reader(HTMLParser):
    """Collects tags, what they refer to, texts and scripts; checks that tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)
        names = ("src", "href", "srcset", "action", "data", "poster", "background")
        self.references += [f"{tag} {name}" for name, _ in attrs if name in names]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        last = self._open[-1] if self._open else ""
        (self.scripts if last == "script" else self.text).append(data)

    @property
    def figures(self) -> list[tuple[list[dict[str, Any]], Mapping[str, Any]]]:
        """Data and layout of every figure."""
        found = []
        for script in self.scripts:
            if script.startswith("Plotly.newPlot("):
                arguments = script.removeprefix("Plotly.newPlot(").removesuffix(");")
                _, data, layout, _ = json.loads(f"[{arguments}]")
                found.append((data, layout))
        return found


def read(path: Path) -> Reader:
    html = page_of(path).html()
    assert len(html) < MAX_BYTES
    reader = Reader(html)
    assert reader.references == [], "a page refers to nothing outside it"
    assert "@import" not in html.split("<script>")[0]
    own = "".join(s for s in reader.scripts if len(s) < 1_000_000)
    assert not re.search(r"https?://", own)
    libraries = [s for s in reader.scripts if len(s) > 1_000_000]
    assert len(libraries) == (1 if reader.figures else 0), "plotly.js is embedded once"
    return reader


def test_plan(tmp_path: Path) -> None:
    plan = relay()
    plan.save(tmp_path / "p", {"seed": 1})
    page = read(tmp_path / "p")
    text = " ".join(page.text)
    for part in ("63 us", "full cost model", "by hand", "lower bound", "gap", "backplane", "0-1"):
        assert part in text
    assert "</script><b>not at all</b>" in text  # as text, not as markup
    assert "b" not in page.tags
    chart, drawing = page.figures
    bars = {row["name"]: row for row in chart[0]}
    assert bars["sends"]["y"] == ["0 > 1", "1 > 2", "1 > 2"]
    assert bars["sends"]["base"] == [0.0, 31.0, 47.0]
    assert bars["sends"]["x"] == [31.0, 16.0, 16.0]
    assert bars["shared capacities"]["y"] == ["backplane"] * 3
    names = [trace["name"] for trace in drawing[0]]
    assert "across the bottleneck cut" in names
    assert names[-1] == "ranks"


def test_executor_plan_with_reductions(tmp_path: Path) -> None:
    plan_collective(RACKS, Collective.ALLREDUCE, 1 << 20).save(tmp_path / "p")
    page = read(tmp_path / "p")
    assert {trace["name"] for trace in page.figures[0][0]} >= {"combined sends", "sends"}


def test_large_plans_are_bounded_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_collective(
        dgx2_taccl_1mb(2), Collective.ALL_TO_ALL, 1 << 24, method=Method(model=FULL)
    )
    line = timeline(plan)
    monkeypatch.setattr(gantt_module, "MAX_BARS", 300)
    monkeypatch.setattr(gantt_module, "MAX_ROWS", 20)
    chart = gantt(plan, line)
    drawn = sum(len(trace.y) for trace in chart.figure.data)
    assert drawn <= 300
    assert "the 20 busiest of" in chart.note
    assert re.search(r"\d+ bars were joined", chart.note)
    # what is joined still covers the same time
    ends = [b + x for trace in chart.figure.data for b, x in zip(trace.base, trace.x, strict=True)]
    assert max(ends) <= line.total_us * (1 + 1e-9)


def test_book(tmp_path: Path) -> None:
    book = build_book(
        RACKS,
        collectives=(Collective.ALLGATHER, Collective.BROADCAST),
        sizes=[1 << 12, 1 << 18, 1 << 24],
        method=Method(model=FULL),
    )
    rooted = replace(book, entries=tuple(e for e in book.entries if e.root in (0, 1)))
    rooted.save(tmp_path / "b")
    page = read(tmp_path / "b")
    text = " ".join(page.text)
    assert "broadcast, root 1" in text
    data, layout = page.figures[0]
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "log"
    lines = {trace["name"]: trace for trace in data}
    best, bound = lines["this book"], lines["lower bound"]
    assert len(best["x"]) > 8
    assert best["x"] == sorted(best["x"])
    assert all(b <= c * (1 + 1e-9) for b, c in zip(best["y"], bound["y"], strict=True))
    names = {entry.plan.generator for entry in book.entries if entry.collective == "allgather"}
    assert names <= set(lines)


@pytest.mark.parametrize("topology", [RACKS, torus((6, 6)), ndv2_taccl_1mb(2)])
def test_topology(tmp_path: Path, topology: Any) -> None:
    topology.save(tmp_path / "t")
    page = read(tmp_path / "t")
    assert len(page.figures) == 2
    assert topology.name in " ".join(page.text)


def test_a_rank_alone_is_not_too_many_for_a_map(tmp_path: Path) -> None:
    """Its page said that it has more than 512 ranks."""
    Topology(name="alone", hosts=("a",), rank_host=(0,), links=()).save(tmp_path / "t")
    page = read(tmp_path / "t")
    assert len(page.figures) == 1
    assert "No map" not in " ".join(page.text)


@pytest.mark.parametrize(
    ("write", "sizes", "rates"),
    [
        (lambda path: relay().save(path), {"MB"}, {"GB/s"}),
        (lambda path: replace(relay(), total_bytes=2 << 20).save(path), {"MiB"}, {"GB/s"}),
        (RACKS.save, set(), {"Mbit/s"}),
        (ndv2_taccl_1mb(2).save, set(), {"Gbit/s"}),
        (lambda path: path.write_bytes(PROFILE.read_bytes()), set(), {"Mbit/s"}),
    ],
    ids=["plan of 2 MB", "plan of 2 MiB", "topology", "fast topology", "profile"],
)
def test_a_page_has_one_unit_of_sizes_and_one_of_rates(
    tmp_path: Path, write: Any, sizes: set[str], rates: set[str]
) -> None:
    write(tmp_path / "f")
    page = read(tmp_path / "f")
    text = " ".join([*page.text, *(s for s in page.scripts if len(s) < 1_000_000)])
    found = re.findall(r"\b(?:[KMGT]i?B|[KMG]bit)(?:/s)?\b|us/MB", text)
    assert {unit for unit in found if unit.endswith("B")} == sizes
    assert {unit for unit in found if unit.endswith("/s")} == rates


def test_crowded_topologies_say_what_is_not_drawn() -> None:
    drawing = draw_topology(racks((40, 41), host_bytes_per_s=1e9, uplink_bytes_per_s=1e9))
    assert drawing.note == f"{MAX_LINES} of {81 * 80 // 2} pairs of linked ranks are drawn"
    points = sum(len(t.x) for t in drawing.figure.data if t.mode == "lines")
    assert points == 3 * MAX_LINES


def test_benchmark(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(RESULT))
    page = read(tmp_path / "r.json")
    text = " ".join(page.text)
    for part in (
        "Benchmark synthesis",
        "SHORT",
        "skipped",
        "unmeasured",
        "NDv2 x1 <allgather>",
        "two cores &",
    ):
        assert part in text
    bars, lines = page.figures
    assert np.isclose(bars[0][0]["x"][0], 0.5)
    assert {trace["name"] for trace in lines[0]} == {"ring", "tree"}
    assert lines[1]["xaxis"]["type"] == "log"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bars": 3}, "is no benchmark result"),
        ({"tables": [1]}, "is no benchmark result"),
        ({"bars": [{"name": "x"}]}, "is no benchmark result"),
        ({"claim": 4}, "is no benchmark result"),
    ],
)
def test_wrong_results(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**RESULT, **change}))
    with pytest.raises(ArtifactError, match=says):
        page_of(tmp_path / "r.json")


def test_a_size_beyond_all_numbers_is_on_no_curve(tmp_path: Path) -> None:
    """JSON that Python writes can have it; the page ended in an OverflowError."""
    rows = [{"size": size, "took_us": 1.0} for size in (1024, 2048, 4096, math.inf)]
    result = {"claim": "speed", "bars": [], "tables": {"sizes": rows}}
    (tmp_path / "r").write_text(json.dumps(result))
    [(lines, _)] = read(tmp_path / "r").figures
    assert len(lines[0]["x"]) == 3


def test_what_has_no_page(tmp_path: Path) -> None:
    Artifact(kind="thing", schema=1, head={}).save(tmp_path / "x")
    with pytest.raises(ArtifactError, match="field 'kind' is 'thing', needs one of .*, plan,"):
        page_of(tmp_path / "x")
    (tmp_path / "y").write_text("{}")
    with pytest.raises(ArtifactError, match="is no headrace artifact"):
        page_of(tmp_path / "y")
    with pytest.raises(ArtifactError, match="cannot be read"):
        page_of(tmp_path / "z")


def test_a_plan_without_sends_has_a_page(tmp_path: Path) -> None:
    """A single rank has nothing to send: no row of the chart, but a page all the same."""
    plan = plan_collective(ring(1), Collective.ALLGATHER, 1 << 20, method=Method(model=FULL))
    plan.save(tmp_path / "plan")
    assert "allgather" in page_of(tmp_path / "plan").html()
