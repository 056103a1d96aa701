"""The counts of the `house` benchmark, on packages of a few lines."""

from pathlib import Path

import pytest

from benchmarks.house.duplicates import DuplicateBlock, duplicate_blocks
from benchmarks.house.modules import (
    code_lines,
    cycles,
    defined_twice,
    imports_into_capabilities,
    long_functions,
    source_modules,
)
from benchmarks.house.public import private_types

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
        ("headrace.cli", "headrace.collectives.plan.book"),
        ("headrace.torch", "headrace.collectives.plan.book"),
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


COPY = """
def {0}(path):
    # a comment
    {1} = open(path)
    if {1} is None:
        raise ValueError("{0}")

    for line in {1}:
        print(line, {2})
    {1}.close()
    return [line for line in {1}]
"""
FIELDS = "class Row:\n" + "".join(f"    field_{number}: int\n" for number in range(12))


def test_copies_with_other_names_and_constants_are_pairs_of_places(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(COPY.format("load", "file", 1))
    (tmp_path / "second.py").write_text(f"{FIELDS}{FIELDS}{COPY.format('read', 'stream', 2)}")
    (tmp_path / "third.py").write_text(COPY.format("parse", "text", 3).replace("print(", "len("))
    (tmp_path / "fourth.py").write_text(COPY.format("scan", "text", 3).replace(" is ", " == "))
    assert duplicate_blocks(source_modules(tmp_path)) == [
        DuplicateBlock(first="first:2", second="second:28", lines=8),
        DuplicateBlock(first="first:2", second="third:2", lines=8),
        DuplicateBlock(first="second:28", second="third:2", lines=8),
    ]


def test_types_of_public_annotations_that_no_facade_offers_are_private(tmp_path: Path) -> None:
    (tmp_path / "facade.py").write_text(
        "from inner import Plan, Proof\n"
        "__all__ = ['Plan', 'plan']\n"
        "def plan(path: 'Path', *, proof: Proof | None = None) -> 'Plan': ...\n"
    )
    (tmp_path / "inner.py").write_text(
        "from pathlib import Path\n"
        "Steps = list[int]\n"
        "class Proof: ...\n"
        "class Plan:\n"
        "    steps: 'Steps'\n"
        "    _cache: 'Cache'\n"
        "    def prove(self, hidden: 'Cache | None') -> Proof: ...\n"
        "    def _inner(self) -> 'Cache': ...\n"
        "class Cache: ...\n"
    )
    assert private_types(source_modules(tmp_path)) == {
        ("inner", "Cache"): ["facade.Plan"],
        ("inner", "Proof"): ["facade.Plan", "facade.plan"],
        ("inner", "Steps"): ["facade.Plan"],
    }
