"""Lines that are no examples: counted, written down, and too many of them an error."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace.embeddings.errors import ExampleError
from headrace.facades import offered_by

_FIRST_LINES = 10_000
"""Before so many lines are read, `most_share` is taken of them."""


@offered_by("headrace.embeddings")
class Rejects:
    """Counts the lines that are rejected, and writes them to a file.

    Parameters
    ----------
    path : file of rejected lines: the source, its line number, the reason and the line itself,
        separated by tabs; None: they are only counted.
    most_share : of all lines that may be rejected; more of them are an error. 0: the first one is.
    keep : lines that the file has stay, and those of them that are rejected again are not written
        again. Else it begins empty.

    Raises
    ------
    ExampleError : the file cannot be written.
    """

    def __init__(
        self, path: str | Path | None = None, most_share: float = 0.0, *, keep: bool = False
    ) -> None:
        if not 0 <= most_share <= 1:
            raise ExampleError(f"the share of rejected lines is {most_share}, needs 0 to 1")
        self.lines = 0
        self.rejected = 0
        self._most_share = most_share
        self._first_problem = ""
        self._path = path
        self._kept = _whole_lines(Path(path)) if path is not None and keep else frozenset[bytes]()
        self._file = None if path is None else _opened(Path(path), keep=keep)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with _written(self._path):
                self._file.close()

    def count(self, lines: int) -> None:
        """Note that so many lines were read; rejected ones among them are reported afterwards."""
        self.lines += lines

    def reject(
        self, source: str, line: int, problem: str, content: bytes, *, unit: str = "line"
    ) -> None:
        """Reject a line, or another `unit` of a file.

        Raises
        ------
        ExampleError : too many are rejected; names the first one. The file cannot be written.
        """
        self.rejected += 1
        self._first_problem = self._first_problem or f"{source}: {unit} {line}: {problem}"
        place = f"{source}\t{line}".encode()
        if self._file is not None and place not in self._kept:
            with _written(self._path):
                self._file.write(place + f"\t{problem}\t".encode() + content + b"\n")
        self._check(max(self.lines, _FIRST_LINES))

    def finish(self) -> None:
        """Check the share of all lines.

        Raises
        ------
        ExampleError : too many are rejected.
        """
        self._check(self.lines)
        self.flush()

    def flush(self) -> None:
        """Have all lines so far in the file, whatever becomes of the process.

        Raises
        ------
        ExampleError : the file cannot be written.
        """
        if self._file is not None:
            with _written(self._path):
                self._file.flush()

    def _check(self, lines: int) -> None:
        if self.rejected <= self._most_share * lines:
            return
        others = f", and {self.rejected - 1} more of {self.lines} lines" * (self.rejected > 1)
        raise ExampleError(
            f"{self._first_problem}{others}: mend the file, or allow a share of rejected lines"
        )


def _opened(path: Path, *, keep: bool) -> BinaryIO:
    with _written(path):
        return path.open("ab" if keep else "wb")


def _whole_lines(path: Path) -> frozenset[bytes]:
    """Return the source and number of each line that a file has, with a tab between them.

    Half a line at the end, of a process that was lost while it wrote, is cut off.
    """
    if not path.is_file():
        return frozenset()
    places, end = set[bytes](), 0
    with _written(path), path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                places.add(b"\t".join(line.split(b"\t", 2)[:2]))
                end += len(line)
        file.truncate(end)
    return frozenset(places)


@contextmanager
def _written(path: str | Path | None) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ExampleError(f"{path}: cannot be written: {error.strerror}") from error
