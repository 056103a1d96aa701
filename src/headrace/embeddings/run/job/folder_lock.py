"""A lock on a job's folder, so that a second start on the same host does not end the first one.

Processes that were thought lost need no lock (see `commits`): this one is for the command that is
given twice. The system releases it with the process that has it, whose forked children have none.
"""

import fcntl
import json
import os
import socket
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NoReturn

from headrace.embeddings.errors import EmbeddingError
from headrace.errors import InputError
from headrace.files import parse_json

_NAME = "lock"

_open_files: weakref.WeakSet[FileIO] = weakref.WeakSet()


@contextmanager
def locked_folder(folder: Path) -> Generator[None]:
    """Hold the lock of a job's folder.

    A folder that another host has locked is not refused: that host may be cut off, and its job is
    to go on here. File systems without locks have none.

    Raises
    ------
    EmbeddingError : a job on this host has it, or its file cannot be written.
    """
    path = folder / _NAME
    try:
        file = path.open("ab", buffering=0)  # a write that failed is not tried again as it closes
    except OSError as error:
        _refuse(folder, error)
    with file:
        _open_files.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse_owner_here(folder)
        except OSError:  # the file system has no locks
            pass
        else:
            _note_owner(file, folder)
        try:
            yield
        finally:
            with suppress(OSError):  # a child that has not let go of its copy yet prolongs it else
                fcntl.flock(file, fcntl.LOCK_UN)


def _leave_to_parent() -> None:
    """Let go of the locks in a child: a copy of a file's descriptor has its lock, too."""
    for file in _open_files:
        if file.closed:
            continue
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), file.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_leave_to_parent)


def _note_owner(file: FileIO, folder: Path) -> None:
    owner = json.dumps({"host": socket.gethostname(), "process": os.getpid()})
    try:
        file.truncate(0)
        file.write(owner.encode())
    except OSError as error:
        _refuse(folder, error)


def _refuse(folder: Path, error: OSError) -> NoReturn:
    raise EmbeddingError(f"{folder}: cannot have the commits of a job: {error.strerror}") from error


def _refuse_owner_here(folder: Path) -> None:
    """Raise EmbeddingError where the owner of the lock is on this host."""
    path = folder / _NAME
    try:
        owner = parse_json(path.read_text(), str(path), EmbeddingError)
        host, process = owner["host"], owner["process"]
    except (OSError, InputError, KeyError, TypeError):  # it is being written
        host, process = socket.gethostname(), "unknown"
    if host == socket.gethostname():
        raise EmbeddingError(
            f"{folder}: another job commits to it, of process {process} on this host: wait for its "
            "end, or take another folder"
        )
