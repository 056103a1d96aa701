"""Progress of long work, on a terminal and off it."""

import io

from rich.console import Console

from headrace.cli.progress import LINE_S, activity


def test_off_a_terminal_there_is_a_line_now_and_then() -> None:
    times = iter([0.0, 1.0, LINE_S, LINE_S + 1, 2 * LINE_S + 1])
    written = io.StringIO()
    with activity(Console(file=written), clock=lambda: next(times)) as report:
        for step in range(4):
            report(f"operator [{step}]")
    assert written.getvalue() == "operator [1] (5 s)\noperator [3] (11 s)\n"


def test_on_a_terminal_it_is_a_spinner_that_goes() -> None:
    written = io.StringIO()
    with activity(Console(file=written, force_terminal=True)) as report:
        report("capturing")
    assert "capturing" in written.getvalue()
