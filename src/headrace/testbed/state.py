"""Registry of testbeds: one directory each, named by its run id, with a record inside.

The directory is made before anything else and removed after everything else, so that the remains
of a killed process can be found.
"""

import fcntl
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import TestbedError
from headrace.facades import public_value
from headrace.testbed import teardown
from headrace.testbed.spec import TestbedSpec

_RECORD = "testbed.json"
_OWNER = "owner"
"""File that the owner keeps locked: other containers have other numbers for its process. There is
none where the file system has no locks."""

_VERSION = 1

NAMESPACES = "namespaces"
LOOPBACK = "loopback"


@public_value("headrace.testbed")
class Record:
    """One testbed as it is on disk.

    Attributes
    ----------
    run : its run id, which is part of every name it has in the kernel.
    mode : `NAMESPACES` or `LOOPBACK`.
    owner : (process id, start time) of the owning process; None for one that stays until `down`.
    master_port : port for the rendezvous of a job.
    """

    directory: Path
    run: str
    mode: str
    spec: TestbedSpec
    owner: tuple[int, str] | None
    master_port: int

    @property
    def crashed(self) -> bool:
        """True if its owner is gone, and will not take it down."""
        if self.owner is None:
            return False
        lock = self.directory / _OWNER
        if lock.exists():
            return not _is_locked(lock)
        return teardown.start_time(self.owner[0]) != self.owner[1]

    @property
    def pace_file(self) -> Path:
        """File of the rates that the transport paces to, of a testbed on loopback."""
        return self.directory / teardown.PACE_FILE

    def save(self) -> None:
        """Write the record atomically."""
        write_json(
            self.directory / _RECORD,
            {
                "version": _VERSION,
                "mode": self.mode,
                "owner": self.owner,
                "master_port": self.master_port,
                "spec": self.spec.to_table(),
            },
        )

    @classmethod
    def load(cls, directory: Path) -> "Record":
        """Read the record in `directory`; raises TestbedError if it is not one."""
        try:
            fields: dict[str, Any] = json.loads((directory / _RECORD).read_text())
            owner = fields["owner"]
            return cls(
                directory=directory,
                run=directory.name,
                mode=str(fields["mode"]),
                spec=TestbedSpec.from_table(fields["spec"], source=str(directory)),
                owner=None if owner is None else (int(owner[0]), str(owner[1])),
                master_port=int(fields["master_port"]),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TestbedError(
                f"{directory}: not a testbed's record ({error!r}); "
                "'headrace testbed down --crashed' removes it"
            ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


def state_directory() -> Path:
    """Return the directory of all records, made if need be.

    Raises
    ------
    TestbedError : it exists and other users could write to it.
    """
    user = os.geteuid()
    runtime = Path("/run")
    if user == 0 and os.access(runtime, os.W_OK):
        path = runtime / "headrace"
    else:
        path = Path(tempfile.gettempdir()) / f"headrace-{user}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
        raise TestbedError(f"{path} is not a directory of user {user}; remove it")
    return path


def reserve() -> tuple[Path, int | None]:
    """Make the directory of a new testbed, under an unused run id, and lock it for its owner.

    Returns
    -------
    tuple[Path, int | None]
        The directory, and the descriptor with the lock: once that is closed, it counts as crashed.
    """
    parent = state_directory()
    while True:
        run = secrets.token_hex(2)
        if teardown.namespaces_of(run):
            continue
        with suppress(FileExistsError):
            (parent / run).mkdir()
            return parent / run, _locked(parent / run / _OWNER)


def records() -> Iterator[Record]:
    """Yield every testbed whose record can be read."""
    for directory in _directories():
        with suppress(TestbedError):
            yield Record.load(directory)


def find(name: str | None) -> Record:
    """Return the testbed with this name or run id; without one, the only testbed there is.

    Raises
    ------
    TestbedError : there is none, or more than one.
    """
    every = list(records())
    matches = [r for r in every if name is None or name in (r.run, r.spec.name)]
    if len(matches) == 1:
        return matches[0]
    if not every:
        raise TestbedError("no testbed is up; 'headrace testbed up FILE.toml' makes one")
    names = ", ".join(f"{r.run} ({r.spec.name})" for r in every)
    if not matches:
        raise TestbedError(f"no testbed '{name}'; up: {names}")
    raise TestbedError(f"several testbeds match; choose one by its run id; up: {names}")


def remove_crashed() -> list[str]:
    """Remove every testbed whose owner is gone; return their run ids."""
    removed: list[str] = []
    for directory in _directories():
        try:
            crashed = Record.load(directory).crashed
        except TestbedError:
            crashed = _is_abandoned(directory)
        if crashed:
            teardown.remove(directory)
            removed.append(directory.name)
    return removed


def _directories() -> list[Path]:
    return sorted(path for path in state_directory().iterdir() if path.is_dir())


def _locked(path: Path) -> int | None:
    """Make a file, lock it and return its descriptor; None where the file system has no locks."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        path.unlink()
        return None
    return descriptor


def _is_locked(path: Path) -> bool:
    """Return whether a process keeps a file locked; the kernel frees it when the process ends."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it is gone, with its testbed
        return False
    return False


def _is_abandoned(directory: Path) -> bool:
    # a directory without a record is being set up right now, or its process died in that instant
    try:
        age_s = time.time() - directory.stat().st_mtime
    except OSError:
        return False
    return age_s > 60
