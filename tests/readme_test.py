"""The README's first screen runs as it is printed."""

import sys
from pathlib import Path

import pytest

from benchmarks.instruments import first_screen
from benchmarks.instruments.first_screen import INSTALLATION, Step, demo_steps, run_steps, steps


def test_the_first_screen_installs_and_gives_results_of_three_capabilities() -> None:
    printed = steps(first_screen.README.read_text())
    assert printed[0].text.startswith(INSTALLATION)
    commands = [step.text for step in printed if not step.is_code]
    for verb in ("doctor", "compression plan", "collectives synthesize", "verify"):
        assert any(f"headrace {verb}" in command for command in commands), verb
    assert any("headrace.Index(" in step.text for step in printed if step.is_code)


def test_a_readme_without_the_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="A result in a minute"):
        steps("# headrace\n\n## Uses\n")
    with pytest.raises(ValueError, match="The demo"):
        demo_steps("# headrace\n\n## The demos\n")


def test_the_demo_is_one_command_in_a_clone() -> None:
    (step,) = demo_steps(first_screen.README.read_text())
    assert step.text.startswith("make demo ")


def test_a_step_that_fails_or_warns_has_a_problem(tmp_path: Path) -> None:
    outcomes = run_steps(
        [Step(text="exit 3"), Step(text="echo warning: old"), Step(text="print(1)", is_code=True)],
        Path(sys.executable),
        tmp_path,
    )
    assert [bool(outcome.problem) for outcome in outcomes] == [True, True, False]
    assert outcomes[0].problem.startswith("exit code 3")


@pytest.mark.slow
def test_the_first_screen_runs_as_it_is_printed(tmp_path: Path) -> None:
    """All but the installation, which ``make bench CLAIM=door`` runs with a wheel."""
    printed = steps(first_screen.README.read_text())[1:]
    outcomes = run_steps(printed, Path(sys.executable), tmp_path)
    assert [outcome for outcome in outcomes if outcome.problem] == []
