"""Error classes that no test expects.

A test expects a class that it names in ``pytest.raises`` or in an ``except`` clause.
"""

import importlib
import re
from pathlib import Path

from benchmarks.harness import ROOT
from headrace.errors import HeadraceError

_PROJECT = ROOT.parent
_EXPECTED = re.compile(r"\b(?:raises\(|except )\s*(\([^)]*\)|[\w.]+)")


def untested_error_classes(tests: Path = _PROJECT / "tests") -> list[str]:
    """Return the names of classes of `errors` modules that no test in a folder expects."""
    expected = {
        name
        for file in tests.rglob("*.py")
        for classes in _EXPECTED.findall(file.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", classes)
    }
    return sorted(error_classes() - expected)


def error_classes() -> set[str]:
    """Return the names of the classes of the `errors` modules, which are public."""
    source = _PROJECT / "src"
    modules = {
        importlib.import_module(".".join(file.relative_to(source).with_suffix("").parts))
        for file in source.rglob("errors.py")
    }
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, HeadraceError)
    }
