import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import Bar, Options, Report, arguments, one_row_a_line
from headrace.errors import InputError

BAR_LINE = re.compile(r"BAR \S+ \S+ required (>=|<=)\S+ (ok|SHORT|skipped)")
QUICK = {"options": Options(quick=True), "not_in_quick": {"large"}}


def run(tmp_path: Path, bars: dict[str, str], figures: dict[str, float | None], **kwargs: object):
    out = io.StringIO()
    console = Console(file=out, width=120)
    with Report("claim", bars=bars, folder=tmp_path, console=console, **kwargs) as report:
        report.row("speeds", backend="gloo", mbit_per_s=57.123456)
        report.row("speeds", backend="headrace", mbit_per_s=94.0, plan="ring")
        for name, figure in figures.items():
            report.bar(name, figure)
    return report, out.getvalue()


def stored(tmp_path: Path) -> dict:
    (path,) = tmp_path.glob("*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("figure", "required", "line"),
    [
        (0.951, ">= 0.93", "BAR x 0.951 required >=0.93 ok"),
        (0.93, ">=0.93", "BAR x 0.93 required >=0.93 ok"),
        (0.929, ">=0.93", "BAR x 0.929 required >=0.93 SHORT"),
        (0.2, "<= 0.25", "BAR x 0.2 required <=0.25 ok"),
        (0.26, "<= 0.25", "BAR x 0.26 required <=0.25 SHORT"),
        (1234567.0, ">= 1e6", "BAR x 1234567 required >=1e6 ok"),
        (None, "<= 15", "BAR x unmeasured required <=15 SHORT"),
    ],
)
def test_a_bar_prints_exactly(figure: float | None, required: str, line: str) -> None:
    assert Bar(name="x", required=required, figure=figure).line() == line


@pytest.mark.parametrize("required", ["0.93", "> 0.93", ">= fast", ">= 1.2.3", ""])
def test_a_bound_must_be_a_bound(required: str) -> None:
    with pytest.raises(InputError, match="needs '>= x' or '<= x'"):
        Bar(name="x", required=required)


def test_a_bar_is_named_by_one_word() -> None:
    with pytest.raises(InputError, match="one word"):
        Bar(name="two words", required=">= 1")


def test_output_ends_with_one_line_per_bar(tmp_path: Path) -> None:
    bars = {"fast": ">= 1", "small": "<= 2", "forgotten": ">= 3"}
    report, out = run(tmp_path, bars, {"fast": 1.5, "small": 2.5})
    lines = out.splitlines()[-3:]
    assert lines == [
        "BAR fast 1.5 required >=1 ok",
        "BAR small 2.5 required <=2 SHORT",
        "BAR forgotten unmeasured required >=3 SHORT",
    ]
    assert all(BAR_LINE.fullmatch(line) for line in lines)
    assert report.exit_code == 0  # a short bar is reported, it is not a failure to measure


def test_bars_that_quick_leaves_out_are_skipped_and_not_ok(tmp_path: Path) -> None:
    bars = {"small": ">= 1", "failed": ">= 2", "large": ">= 3"}
    report, out = run(tmp_path, bars, {"small": 1.5, "failed": None}, **QUICK)
    lines = out.splitlines()[-3:]
    assert lines == [
        "BAR small 1.5 required >=1 ok",
        "BAR failed unmeasured required >=2 SHORT",
        "BAR large unmeasured required >=3 skipped",
    ]
    assert all(BAR_LINE.fullmatch(line) for line in lines)
    assert report.exit_code == 0
    assert stored(tmp_path)["bars"][1:] == [
        {"name": "failed", "figure": None, "required": ">= 2", "ok": False},
        {"name": "large", "figure": None, "required": ">= 3", "ok": False, "skipped": True},
    ]


@pytest.mark.parametrize(
    ("figure", "line"),
    [
        (4.0, "BAR large 4 required >=3 ok"),
        (2.0, "BAR large 2 required >=3 SHORT"),
        (None, "BAR large unmeasured required >=3 SHORT"),
    ],
)
def test_a_bar_that_was_tried_is_not_skipped(
    tmp_path: Path, figure: float | None, line: str
) -> None:
    _, out = run(tmp_path, {"large": ">= 3"}, {"large": figure}, **QUICK)
    assert out.endswith(line + "\n")
    assert "skipped" not in stored(tmp_path)["bars"][0]


def test_a_full_run_skips_no_bar(tmp_path: Path) -> None:
    _, out = run(tmp_path, {"large": ">= 3"}, {}, not_in_quick={"large"})
    assert out.endswith("BAR large unmeasured required >=3 SHORT\n")


def test_bars_that_quick_leaves_out_are_declared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not_in_quick names \['larg'\].*\['large'\]"):
        Report("claim", bars={"large": ">= 3"}, not_in_quick={"larg"}, folder=tmp_path)


def test_nan_counts_as_unmeasured(tmp_path: Path) -> None:
    _, out = run(tmp_path, {"x": ">= 1"}, {"x": float("nan")})
    assert out.endswith("BAR x unmeasured required >=1 SHORT\n")
    assert stored(tmp_path)["bars"][0]["figure"] is None


def test_a_crash_still_prints_and_stores_every_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    with Report(
        "claim", bars={"a": ">= 1", "b": ">= 1"}, folder=tmp_path, console=Console(file=out)
    ) as report:
        report.bar("a", 2.0)
        raise RuntimeError("the rival is missing")
    assert report.exit_code == 1
    assert out.getvalue().splitlines()[-2:] == [
        "BAR a 2 required >=1 ok",
        "BAR b unmeasured required >=1 SHORT",
    ]
    assert "the rival is missing" in capsys.readouterr().err
    assert "the rival is missing" in stored(tmp_path)["notes"][0]


def test_an_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        Report("claim", bars={}, folder=tmp_path, console=Console(file=io.StringIO())),
    ):
        raise KeyboardInterrupt


def test_the_stored_result_has_machine_and_versions(tmp_path: Path) -> None:
    run(tmp_path, {"x": ">= 1"}, {"x": 1.25}, options=Options(quick=True))
    result = stored(tmp_path)
    assert result["claim"] == "claim"
    assert result["quick"] is True
    assert result["machine"]["kernel"]
    assert result["versions"]["python"].startswith("3.")
    assert result["tables"]["speeds"][1] == {
        "backend": "headrace",
        "mbit_per_s": 94.0,
        "plan": "ring",
    }
    assert result["bars"] == [{"name": "x", "figure": 1.25, "required": ">= 1", "ok": True}]


def test_kept_results_have_names_that_git_does_not_ignore(tmp_path: Path) -> None:
    run(tmp_path, {}, {}, options=Options(keep=True))
    assert [path.name.startswith("kept-") for path in tmp_path.iterdir()] == [True]


def test_results_are_stored_with_a_row_a_line() -> None:
    rows = [{"a": 1}, {"a": [2, 3]}]
    result = {"claim": "x", "tables": {"one": rows, "none": []}, "notes": [], "bars": [{"b": 4}]}
    text = one_row_a_line(result)
    assert json.loads(text) == result
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    for row in (*rows, {"b": 4}):
        assert json.dumps(row) in lines


def test_what_is_attached_lies_beside_the_result(tmp_path: Path) -> None:
    with Report(
        "claim", bars={}, options=Options(keep=True), folder=tmp_path, console=Console(quiet=True)
    ) as report:
        report.attach("trace", {"events": [1, 2]})
    result, attached = sorted(tmp_path.iterdir(), key=lambda path: len(path.name))
    assert attached.name == f"{result.stem}-trace.json"
    assert json.loads(attached.read_text()) == {"events": [1, 2]}


def test_tables_show_every_column_and_missing_cells(tmp_path: Path) -> None:
    _, out = run(tmp_path, {}, {})
    assert re.search(r"gloo\s*│\s*57.123\s*│\s*-", out)
    assert re.search(r"headrace\s*│\s*94\s*│\s*ring", out)


def test_bars_are_declared_and_given_once(tmp_path: Path) -> None:
    report = Report("claim", bars={"x": ">= 1"}, folder=tmp_path)
    with pytest.raises(InputError, match="'y' is not declared, needs one of \\['x'\\]"):
        report.bar("y", 1.0)
    report.bar("x", 1.0)
    with pytest.raises(InputError, match="given twice"):
        report.bar("x", 2.0)


def test_the_command_line() -> None:
    assert arguments("d", []) == Options(quick=False, keep=False)
    assert arguments("d", ["--quick", "--keep"]) == Options(quick=True, keep=True)
