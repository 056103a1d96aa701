"""The counts of the `house` benchmark, on packages of a few lines."""

from pathlib import Path

import pytest

from benchmarks.house.modules import (
    code_lines,
    cycles,
    defined_twice,
    imports_into_capabilities,
    long_functions,
    source_modules,
)

FILES = {
    "headrace/__init__.py": "",
    "headrace/cli.py": "from headrace.collectives.plan import book\nimport headrace.collectives\n",
    "headrace/torch.py": "from headrace.collectives.plan import book\n",
    "headrace/collectives/__init__.py": "",
    "headrace/collectives/plan/__init__.py": "",
    "headrace/collectives/plan/book.py": (
        "def build():\n    from headrace.collectives.plan.entry import Entry\n"
        "Pair = tuple[int, int]\nLIMITS = dict[int, int]\n"
    ),
    "headrace/collectives/plan/entry.py": (
        '"""A docstring\n\nof three lines."""\n\nfrom headrace.collectives.plan import book\n'
        "class Entry:  # a comment\n    '''What it is.'''\n\n    text = '''two\nlines'''\n"
        "Pair = tuple[str, str]\n"
    ),
}


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, Path]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source_modules(tmp_path)


def test_lazy_imports_close_cycles(modules: dict[str, Path]) -> None:
    assert cycles(modules) == [
        ["headrace.collectives.plan.book", "headrace.collectives.plan.entry"]
    ]


def test_inner_modules_are_for_the_capability_and_for_what_joins_them(
    modules: dict[str, Path],
) -> None:
    assert imports_into_capabilities(modules) == [
        ("headrace.cli", "headrace.collectives.plan.book")
    ]


def test_public_names_of_two_modules_are_found(modules: dict[str, Path]) -> None:
    assert defined_twice(modules) == {
        "Pair": ["headrace.collectives.plan.book", "headrace.collectives.plan.entry"]
    }


def test_functions_are_measured_from_their_first_line_to_their_last(
    modules: dict[str, Path],
) -> None:
    assert long_functions(modules, 1) == [("headrace.collectives.plan.book", "build", 2)]
    assert not long_functions(modules, 2)


def test_blank_lines_comments_and_docstrings_hold_no_code(modules: dict[str, Path]) -> None:
    assert code_lines(modules["headrace.collectives.plan.entry"]) == 5
    assert code_lines(modules["headrace.collectives.plan.book"]) == 4
