"""Users' files: read with errors that name the file and the reason, written as a whole."""

import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import InputError

__all__ = [
    "decoded",
    "load_json",
    "parse_json",
    "read_bytes",
    "read_text",
    "refuse_pipe",
    "sync_folder",
    "whole_file",
    "whole_files",
    "without_infinities",
    "write_whole",
]

_NAMED = 48
"""Characters of a file's name in that of its temporary file: a longest name has no room for more
beside it, and a character has up to four bytes."""


def read_bytes(
    path: str | Path, error: type[InputError] = InputError, most: int | None = None
) -> bytes:
    """Return the content of a file.

    Raises
    ------
    error : naming the file, if it cannot be read or has more than `most` bytes.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(-1 if most is None else most + 1)
    except (OSError, ValueError) as found:
        reason = getattr(found, "strerror", None) or found
        raise error(f"{path}: cannot be read: {reason}") from found
    if most is not None and len(content) > most:
        raise error(f"{path}: has more than {most} bytes")
    return content


def refuse_pipe(path: str | Path, error: type[InputError] = InputError) -> None:
    """Raise `error` for a pipe, where a file is read more than once: its bytes come only once.

    The second reading would have what the first one left, or wait without end.
    """
    try:
        is_pipe = stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116
    except (OSError, ValueError):
        return  # the reader reports it
    if is_pipe:
        raise error(f"{path}: is a pipe, needs a file: keep what comes from the pipe in one")


def decoded(content: bytes, source: str, error: type[InputError] = InputError) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark; raises `error`."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as found:
        raise error(
            f"{source}: byte {found.start} is no UTF-8, needs a text file: save it as UTF-8"
        ) from found


def read_text(path: str | Path, error: type[InputError] = InputError) -> str:
    """Return the text of a UTF-8 file.

    Raises
    ------
    error : naming the file, if it cannot be read or is not text.
    """
    return decoded(read_bytes(path, error), str(path), error)


def parse_json(text: str, source: str, error: type[InputError] = InputError) -> Any:
    """Return the value of a JSON text, see `load_json`; raises `error` naming the source."""
    try:
        return load_json(text)
    except (ValueError, RecursionError) as found:
        raise error(f"{source}: is not JSON: {found}") from found


def load_json(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON whose numbers are finite and whose integers have at most 64 bits.

    Python accepts any, which would fail later: no column holds them, and sums of very long ones
    cannot even be printed.

    Parameters
    ----------
    pairs : makes the value of an object from its fields, in order; None: a dictionary.

    Raises
    ------
    ValueError, RecursionError : for what is not such JSON.
    """
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_finite,
        parse_int=_bounded,
        object_pairs_hook=pairs,
    )


def without_infinities(document: Any) -> Any:
    """Return values of JSON with null for numbers that it does not have: infinities and NaN."""
    match document:
        case dict():
            return {name: without_infinities(part) for name, part in document.items()}
        case list() | tuple():
            return [without_infinities(part) for part in document]
        case float() if not math.isfinite(document):
            return None
        case _:
            return document


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is complete, or as it was, also after a loss of power.

    Raises
    ------
    OSError : the system refused it.
    """
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing in the block; if that fails, the path has what it had.

    A file that exists keeps its permissions, and a link to one stays a link.

    Raises
    ------
    OSError : the system refused it.
    """
    with whole_files() as opened, opened(path) as file:
        yield file


@contextmanager
def whole_files() -> Generator[Callable[[Path], AbstractContextManager[BinaryIO]]]:
    """Yield a function that opens a file for writing, as `whole_file`.

    When the block ends, the files take their places, one after the other. If it fails before, all
    paths have what they had.

    Raises
    ------
    OSError : the system refused it.
    """
    paths: dict[Path, Path] = {}  # of the temporary files

    @contextmanager
    def opened(path: Path) -> Generator[BinaryIO]:
        path = Path(os.path.realpath(path))
        # of a name of its own, as others may write the same file now
        temporary = path.with_name(f".{path.name[:_NAMED]}.{secrets.token_hex(6)}")
        # opened like any new file (unlike tempfile's, which only the owner may read): umask applies
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        paths[temporary] = path
        with os.fdopen(descriptor, "wb") as file:
            with suppress(OSError):  # there is none yet, or the file system has no permissions
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())

    try:
        yield opened
        for temporary, path in paths.items():
            temporary.replace(path)
    except BaseException:
        for temporary in paths:
            temporary.unlink(missing_ok=True)
        raise
    for folder in {path.parent for path in paths.values()}:
        sync_folder(folder)


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on the device, if its file system syncs folders.

    One that this process may write to and not read cannot be opened: then all files are synced.

    Raises
    ------
    OSError : the system refused it.
    """
    try:
        folder = os.open(path, os.O_RDONLY)
    except PermissionError:
        os.sync()
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # as of folders that a virtual machine shares with its host
            raise
    finally:
        os.close(folder)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _bounded(text: str) -> int:
    value = int(text) if len(text) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{text[:24]} is out of range, needs an integer of at most 64 bits")
    return value
