"""Commands of the pages of docs/ run, in their order, without a warning."""

from pathlib import Path

import pytest

from tests.documented import PAGES, SLOW, commands, problems, scripts


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PAGES]
)
@pytest.mark.sampled(2, of="commands of pages")
def test_commands_of_the_pages_run_without_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of these pages ran in no test, so that one that fails or warns went unnoticed."""
    monkeypatch.chdir(tmp_path)
    assert commands(name)
    assert list(problems(name)) == []


def test_commands_that_do_not_run_are_still_in_the_pages() -> None:
    for name, page in PAGES.items():
        for start in page.not_run:
            assert any(line.startswith(f"headrace {start}") for line in commands(name)), start


def test_a_script_of_a_page_runs_where_the_page_runs_it() -> None:
    for name in PAGES:
        for script in scripts(name):
            uses = (f"python {script}", f"{script.removesuffix('.py')}:")
            assert any(use in line for line in commands(name) for use in uses), script


def test_a_command_that_fails_or_warns_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.documented.commands", lambda _page: ["headrace show no-file"])
    (problem,) = problems("doctor")
    assert problem.startswith("doctor.md: headrace show no-file: ")
