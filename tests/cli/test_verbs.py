"""The command line as a whole: one meaning of each option, earlier spellings, units."""

import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from benchmarks.instruments.command_line import options_with_two_meanings
from headrace.cli.answers import result_type
from headrace.cli.app import app, verbs
from headrace.cli.options import check_output
from headrace.errors import InputError


def test_an_option_has_one_meaning() -> None:
    assert options_with_two_meanings() == {}


def test_a_link_to_itself_is_an_output_like_others(tmp_path: Path) -> None:
    """It ended the command in a RuntimeError."""
    (tmp_path / "loop").symlink_to("loop")
    check_output(tmp_path / "loop", [tmp_path / "input"])
    with pytest.raises(InputError, match="loop: is read by this command"):
        check_output(tmp_path / "loop", [tmp_path / "loop"])


def test_helps_at_80_columns_have_no_word_that_is_cut() -> None:
    """Options of ``memory plan`` ended in ``fit(accumulates=T…``."""
    for path, _ in verbs():
        text = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"}).output
        assert "…" not in text, path
        assert max(map(len, text.splitlines())) <= 80, path


def test_a_schema_is_asked_for_by_a_part_of_a_verb() -> None:
    """The error named all verbs and hinted at none."""
    failed = CliRunner().invoke(app, ["schema", "plan"])
    assert "; did you mean attention plan or collectives plan or " in str(failed.exception)


def test_a_second_meaning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        option.opts[0]: option
        for path, verb in verbs()
        if path == "memory plan"
        for option in verb.params
    }
    monkeypatch.setattr(options["--budget"], "metavar", "TIME")
    monkeypatch.setattr(options["--seed"], "help", "Of the random numbers.")
    # the verb that is imported again is another object, so the two are compared with one list
    table = [("memory plan", verb) for path, verb in verbs() if path == "memory plan"]
    changed = [("altered", type(table[0][1])("altered", params=[*options.values()]))]
    monkeypatch.setattr("benchmarks.instruments.command_line.verbs", lambda: [*table, *changed])
    assert {*options_with_two_meanings()} == {"--budget", "--seed"}


def test_an_earlier_spelling_is_taken_with_a_warning(tmp_path: Path) -> None:
    """Scripts of before go on, and say what to write."""
    plan = ["compression", "plan", "--model", "resnet50", "--batch", "64", "--workers=8"]
    former = CliRunner().invoke(app, [*plan, "--bandwidth", "1Gbps", "--latency", "7"])
    present = CliRunner().invoke(
        app,
        [
            *("compression", "plan", "--bundled", "resnet50", "--batch", "64", "--ranks", "8"),
            *("--bandwidth", "1 Gbit/s", "--latency", "7us"),
        ],
    )
    assert former.exit_code == present.exit_code == 0, former.output
    assert former.stdout == present.stdout
    assert present.stderr == ""
    assert [line.partition(";")[0] for line in former.stderr.splitlines()] == [
        "warning: --model is now --bundled",
        "warning: --workers 8 is now --ranks 8",
        "warning: --latency 7 is now --latency 7us",
    ]


def test_an_earlier_spelling_is_a_value_or_a_commands_own_elsewhere() -> None:
    """After '--', and as a name's value, texts stay as they are."""
    run = ["testbed", "exec", "host", "--name=x", "--", "ls", "--testbed", "y"]
    outcome = CliRunner().invoke(app, run)
    assert "warning" not in outcome.output


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("embeddings run job.plan train.py --epochs 2", True),
        ("testbed run testbed.toml python train.py --epochs 2", True),
        ("testbed run --epochs 2 testbed.toml -- python train.py", False),
        ("index run keys.npy --epochs 2", False),
    ],
)
def test_an_unknown_option_may_be_that_of_the_command_that_is_run(verb: str, hint: bool) -> None:
    """The error named options of the verb that are nearly alike, such as --help."""
    outcome = CliRunner().invoke(app, verb.split(), env={"COLUMNS": "200"})
    assert outcome.exit_code == 2
    assert "No such option: --epochs" in outcome.output
    assert ("come after '--'" in outcome.output) is hint


@pytest.mark.parametrize("limit", ["12", "soon", "5 years"])
def test_a_time_needs_a_unit(limit: str, tmp_path: Path) -> None:
    arguments = ["collectives", "measure", "-o", str(tmp_path / "x"), "--testbed", "no.toml"]
    outcome = CliRunner().invoke(app, [*arguments, "--time-limit", limit])
    assert isinstance(outcome.exception, InputError)
    assert f"--time-limit is {limit!r}, needs a number and a unit" in str(outcome.exception)


def test_results_are_frozen(golden: Callable[[str, bytes], None]) -> None:
    """A field that goes, or means something else, needs another version: see `cli.answers`."""
    lines: list[str] = []
    for path, verb in verbs():
        kind = result_type(verb.callback)
        lines += [f"{path} {getattr(kind, 'VERSION', 1)}", *fields_of(kind)]
    golden("results.txt", ("\n".join(lines) + "\n").encode())


def fields_of(kind: Any, depth: int = 1) -> Iterator[str]:
    """A result's fields and their types, those of results within it below them."""
    for name, hint in get_type_hints(kind).items():
        text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        yield f"{'    ' * depth}{name}: {re.sub(r'[a-z_.]+[.](?=[A-Z])', '', text)}"
        for inner in (hint, *get_args(hint), *(i for a in get_args(hint) for i in get_args(a))):
            if is_dataclass(inner):
                yield from fields_of(inner, depth + 1)
