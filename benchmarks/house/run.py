"""The state of the source: cycles, imports past facades, words, names, sizes, start-up times.

Counts are of files that git tracks, and of what it would; QUICK is the same.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness import ROOT, Report, arguments
from benchmarks.house.modules import (
    code_lines,
    cycles,
    defined_twice,
    imports_into_capabilities,
    long_functions,
    source_modules,
)
from tests.minutes import BUDGETS
from tests.vocabulary_test import covered, retired_words

PROJECT = ROOT.parent
LATER = tuple(name for names in BUDGETS["fast"] if len(names) == 1 for name in names)
"""Capabilities that moved in after the bars were set: their lines count apart, each by itself."""
LONGEST_FUNCTION = 60
REPEATS = 9
BARS = {
    "circular-imports": "<=0",
    "imports-into-a-capability": "<=0",
    "retired-words": "<=0",
    "names-defined-twice": "<=15",
    "functions-over-60-lines": "<=10",
    "code-lines-src": "<=35000",
    "code-lines-later-capability": "<=8000",
    "lines-kept-json": "<=3000",
    "test-minutes": "<=9",
    "test-minutes-later-capability": "<=4",
    "import-ms": "<=100",
    "help-ms": "<=500",
}
TEST_MINUTES = PROJECT / "build" / "test-minutes.txt"


def start_ms(*arguments: str) -> float:
    """Return the median time that Python takes for a command, from start to exit, in ms."""
    times: list[float] = []
    for _ in range(REPEATS + 1):  # the first one reads from disk
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[1:])


def kept_results() -> Sequence[Path]:
    """Return the results of benchmarks that git keeps."""
    return sorted(ROOT.glob("*/results/kept-*.json"))


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def measure(report: Report) -> None:
    """Add a row for everything that counts against a bar, and give the bars."""
    modules = source_modules(PROJECT / "src")
    found = cycles(modules)
    for names in found:
        report.row("cycles of imports", modules=" ".join(names))
    report.bar("circular-imports", len(found))

    into = imports_into_capabilities(modules)
    for module, count in Counter(module for module, _ in into).items():
        report.row("imports of a capability's inner modules", module=module, imports=count)
    report.bar("imports-into-a-capability", len(into))

    words = retired_words(covered())
    for word in words:
        report.row("retired words", place=f"{word.path.name}:{word.line}", problem=word.problem)
    report.bar("retired-words", len(words))

    twice = defined_twice(modules)
    for name, where in twice.items():
        report.row("names defined twice", name=name, modules=" ".join(where))
    report.bar("names-defined-twice", len(twice))

    long = long_functions(modules, LONGEST_FUNCTION)
    for module, function, lines in long:
        report.row("long functions", module=module, function=function, lines=lines)
    report.bar("functions-over-60-lines", len(long))

    total, later = 0, dict.fromkeys(LATER, 0)
    for part, names in parts(modules).items():
        code = sum(code_lines(modules[name]) for name in names)
        every = sum(_lines(modules[name]) for name in names)
        capability = part.partition("/")[0]
        if capability in later:
            later[capability] += code
        else:
            total += code
        report.row("lines of src", part=part, code=code, all=every, modules=len(names))
    report.bar("code-lines-src", total)
    report.bar("code-lines-later-capability", max(later.values()))

    for path in kept_results():
        report.row("kept results", file=str(path.relative_to(ROOT)), lines=_lines(path))
    report.bar("lines-kept-json", sum(map(_lines, kept_results())))

    minutes = TEST_MINUTES.read_text().split() if TEST_MINUTES.exists() else []
    for name, figure in zip(
        ("test-minutes", "test-minutes-later-capability"), minutes, strict=False
    ):
        report.bar(name, float(figure))
    report.bar("import-ms", start_ms("-c", "import headrace"))
    report.bar("help-ms", start_ms("-m", "headrace", "--help"))


def parts(modules: dict[str, Path]) -> dict[str, list[str]]:
    """Return the modules of every part: a folder of the package, or of a capability."""
    grouped: dict[str, list[str]] = {}
    for name, path in modules.items():
        folders = path.relative_to(PROJECT / "src" / "headrace").parts[:-1]
        grouped.setdefault("/".join(folders[:2]) or "(top)", []).append(name)
    return grouped


def main() -> int:
    """Run the benchmark."""
    options = arguments(__doc__)
    with Report("house", bars=BARS, options=options) as report:
        measure(report)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
