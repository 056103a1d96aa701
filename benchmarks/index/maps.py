"""Ordered maps under measurement: each is a process of the native benchmark; they take turns."""

import json
import os
import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.harness import ROOT

PROGRAM = Path(
    os.environ.get("INDEX_BENCH", ROOT.parent / "build" / "release" / "native" / "index_bench")
)
HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""The allocator's setting for every map: glibc's malloc asks for transparent huge pages."""

_DEADLINE_S = 1800.0


class MapError(RuntimeError):
    """The native benchmark ended or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedMap:
    """A map that the native benchmark knows: its label in tables, `kind`, and settings."""

    label: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    value_bytes: int = 8
    huge_pages: bool = True
    folder: Path | None = None
    sync: bool = True

    def command(self, workload: Path) -> list[str]:
        """Return the command line."""
        line = [str(PROGRAM), self.kind, str(workload), "--value-bytes", str(self.value_bytes)]
        for name, value in self.settings.items():
            given = int(value) if isinstance(value, bool) else value
            line += ["--set", f"{name}={given}"]
        if self.folder is not None:
            line += ["--folder", str(self.folder), "--sync", str(int(self.sync))]
        return line


ABSL = OrderedMap(label="absl", kind="absl")
JUDY = OrderedMap(label="judy", kind="judy")
STANDARD = OrderedMap(label="std::map", kind="standard")
VECTOR = OrderedMap(label="sorted vector", kind="vector")


class Running:
    """A map's process, which obeys commands of `native/index/bench/index_bench.cpp`."""

    def __init__(self, ordered_map: OrderedMap, workload: Path) -> None:
        self.label = ordered_map.label
        tunables = HUGE_PAGES if ordered_map.huge_pages else ""
        self._process = subprocess.Popen(
            ordered_map.command(workload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Return the answer to a command.

        Raises
        ------
        MapError : if the process ends, or does not answer within half an hour.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(command) from None
        return json.loads(self._line(command))

    def _line(self, command: str) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(_DEADLINE_S):
                raise MapError(f"{self.label}: {command!r} took more than {_DEADLINE_S:.0f} s")
        line = stdout.readline()
        if not line:
            raise self._ended(command)
        return line

    def _ended(self, command: str) -> MapError:
        code = self._process.wait(timeout=10)
        assert self._process.stderr is not None
        reason = self._process.stderr.read().strip()
        return MapError(f"{self.label}: {command!r} ended with {code}: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def running(maps: Sequence[OrderedMap], workload: Path) -> Iterator[list[Running]]:
    """Start maps and load them; their processes end with the block."""
    with ExitStack() as stack:
        started = [stack.enter_context(Running(each, workload)) for each in maps]
        for each in started:
            each.ask("build")
        yield started


def turns(
    maps: Sequence[Running], count: int, *, slices: int, verb: str = "run", after: str = ""
) -> dict[str, dict[str, Any]]:
    """Replay `count` operations on every map, and return the sums of the answers by label.

    The operations are cut into `slices`; in every slice each map has its turn, in an order that
    rotates, so that what else the machine does falls on all of them.

    Parameters
    ----------
    verb, after : the command, and what follows its range.
    """
    answers: dict[str, list[dict[str, Any]]] = {each.label: [] for each in maps}
    for index in range(slices):
        begin, end = count * index // slices, count * (index + 1) // slices
        for turn in range(len(maps)):
            each = maps[(index + turn) % len(maps)]
            answers[each.label].append(each.ask(f"{verb} {begin} {end} {after}"))
    return {label: totals(rows) for label, rows in answers.items()}


def check(maps: Sequence[Running], count: int) -> int:
    """Return how many of the inserted codes headrace's maps do not find, or with other values."""
    ours = [each for each in maps if each.label.startswith("headrace")]
    return sum(int(each.ask(f"check 0 {count}")["wrong"]) for each in ours)


def totals(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of a map's answers; checksums are of 64 bits."""
    names = ("operations", "ns", "cpu_ns", "wrong", "checksum")
    sums = {name: sum(int(answer[name]) for answer in answers) for name in names}
    sums["checksum"] %= 1 << 64
    return sums


def wrong_answers(by_label: Mapping[str, Mapping[str, Any]], truth: str = "absl") -> int:
    """Return headrace's wrong answers: those of checked lookups, and scans of other keys."""
    expected = by_label[truth]["checksum"] if truth in by_label else None
    wrong = 0
    for label, sums in by_label.items():
        if label.startswith("headrace"):
            other = expected is not None and sums["checksum"] != expected
            wrong += int(sums["wrong"]) + int(other)
    return wrong
