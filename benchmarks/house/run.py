"""The state of the source: imports, public types, words, names, copies, start-up times.

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
from benchmarks.house.duplicates import duplicate_blocks
from benchmarks.house.modules import (
    Modules,
    code_lines,
    cycles,
    defined_twice,
    imports_into_capabilities,
    long_functions,
    source_modules,
)
from benchmarks.house.public import private_types
from tests.vocabulary_test import banned_phrases, count_names, covered, packages, retired_words

PROJECT = ROOT.parent
LONGEST_FUNCTION = 60
REPEATS = 9
DUPLICATE_BLOCKS_BEFORE = 56
"""Pairs of places when they were first counted, by `duplicate_blocks` as it is here."""
BARS = {
    "circular-imports": "<=0",
    "imports-into-a-capability": "<=0",
    "private-types-in-public": "<=0",
    "retired-words": "<=0",
    "banned-phrases": "<=0",
    "placeholder-names-package": "<=0.04",
    "placeholder-names": "<=0.03",
    "duplicate-blocks": f"<={DUPLICATE_BLOCKS_BEFORE // 2}",
    "names-defined-twice": "<=15",
    "functions-over-60-lines": "<=10",
    "lines-kept-json": "<=3000",
    "test-minutes": "<=10",
    "test-budgets-exceeded": "<=0",
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
    measure_imports(report, modules)
    measure_words(report)
    measure_modules(report, modules)
    for path in kept_results():
        report.row("kept results", file=str(path.relative_to(ROOT)), lines=_lines(path))
    report.bar("lines-kept-json", sum(map(_lines, kept_results())))
    if TEST_MINUTES.exists():
        minutes, exceeded = TEST_MINUTES.read_text().split()
        report.bar("test-minutes", float(minutes))
        report.bar("test-budgets-exceeded", int(exceeded))
    report.bar("import-ms", start_ms("-c", "import headrace"))
    report.bar("help-ms", start_ms("-m", "headrace", "--help"))


def measure_imports(report: Report, modules: Modules) -> None:
    """Count cycles, imports past facades, and types that facades do not offer."""
    benchmarks = {f"benchmarks.{name}": path for name, path in source_modules(ROOT).items()}
    import_cycles = cycles({**modules, **benchmarks})
    for names in import_cycles:
        report.row("cycles of imports", modules=" ".join(names))
    report.bar("circular-imports", len(import_cycles))

    inner = imports_into_capabilities(modules)
    for module, count in Counter(module for module, _ in inner).items():
        report.row("imports of a capability's inner modules", module=module, imports=count)
    report.bar("imports-into-a-capability", len(inner))

    private = private_types(modules)
    for (module, name), users in private.items():
        report.row("private types in public", type=f"{module}.{name}", used_by=" ".join(users))
    report.bar("private-types-in-public", len(private))


def measure_words(report: Report) -> None:
    """Count retired words, banned phrases, and placeholders among names."""
    for bar, problems in (
        ("retired-words", retired_words(covered())),
        ("banned-phrases", banned_phrases(covered())),
    ):
        for problem in problems:
            place = f"{problem.path.relative_to(PROJECT)}:{problem.line}"
            report.row(bar.replace("-", " "), place=place, problem=problem.problem)
        report.bar(bar, len(problems))

    shares: list[float] = []
    source = PROJECT / "src" / "headrace"
    for package, paths in {**packages(source), "(all)": source.rglob("*.py")}.items():
        count = count_names(paths)
        shares.append(count.placeholder_share)
        names = Counter(place.name for place in count.placeholders).most_common(4)
        report.row(
            "placeholder names",
            package=package,
            names=count.names,
            placeholders=round(count.placeholder_share, 4),
            with_generic=round(count.generic_share, 4),
            most=" ".join(f"{name} {uses}" for name, uses in names),
        )
    *by_package, total = shares
    report.bar("placeholder-names-package", round(max(by_package), 4))
    report.bar("placeholder-names", round(total, 4))


def measure_modules(report: Report, modules: dict[str, Path]) -> None:
    """Count names that stand twice, copies and long functions; print lines of code."""
    twice = defined_twice(modules)
    for name, where in twice.items():
        report.row("names defined twice", name=name, modules=" ".join(where))
    report.bar("names-defined-twice", len(twice))

    duplicates = duplicate_blocks(modules)
    for block in duplicates:
        report.row("duplicate blocks", first=block.first, second=block.second, lines=block.lines)
    report.bar("duplicate-blocks", len(duplicates))

    long = long_functions(modules, LONGEST_FUNCTION)
    for module, function, lines in long:
        report.row("long functions", module=module, function=function, lines=lines)
    report.bar("functions-over-60-lines", len(long))

    by_capability: Counter[str] = Counter()
    for part, names in parts(modules).items():
        code = sum(code_lines(modules[name]) for name in names)
        every = sum(_lines(modules[name]) for name in names)
        by_capability[part.partition("/")[0]] += code
        report.row("lines of src", part=part, code=code, all=every, modules=len(names))
    for capability, code in by_capability.items():
        report.row("lines of code by package", package=capability, code=code)


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
