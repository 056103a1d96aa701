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

    Raises
    ------
    ExampleError : the file cannot be written.
    """

    def __init__(self, path: str | Path | None = None, most_share: float = 0.0) -> None:
        if not 0 <= most_share <= 1:
            raise ExampleError(f"the share of rejected lines is {most_share}, needs 0 to 1")
        self.lines = 0
        self.rejected = 0
        self._most_share = most_share
        self._first_problem = ""
        self._path = path
        self._file = None if path is None else _opened(Path(path))

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
        if self._file is not None:
            with _written(self._path):
                self._file.write(f"{source}\t{line}\t{problem}\t".encode() + content + b"\n")
        self._check(max(self.lines, _FIRST_LINES))

    def finish(self) -> None:
        """Check the share of all lines.

        Raises
        ------
        ExampleError : too many are rejected.
        """
        self._check(self.lines)
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


def _opened(path: Path) -> BinaryIO:
    with _written(path):
        return path.open("wb")


@contextmanager
def _written(path: str | Path | None) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ExampleError(f"{path}: cannot be written: {error.strerror}") from error
