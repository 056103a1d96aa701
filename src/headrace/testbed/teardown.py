"""Removal of a testbed: its processes, its namespaces, its files.

It imports nothing of headrace, because it is also the guardian: a small process that runs this
file by its path, waits until its owner has ended for any reason, and removes the remains.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

NAMESPACE_DIRECTORY = Path("/run/netns")
NAMES_DIRECTORY = Path("/etc/netns")  # `ip netns exec` puts the files in there over /etc
PREFIX = "hr"
PACE_FILE = "pace.json"
GRACE_S = 1.0
_COMMAND_DEADLINE_S = 30.0


def namespace_name(run: str, host: str) -> str:
    """Return the network namespace of a host: testbeds differ by their run id."""
    return f"{PREFIX}-{run}-{host}"


def namespaces_of(run: str) -> list[str]:
    """Return the namespaces that exist for a run, even if it came up in part only."""
    if not NAMESPACE_DIRECTORY.is_dir():
        return []
    return sorted(path.name for path in NAMESPACE_DIRECTORY.glob(f"{PREFIX}-{run}-*"))


def find_program(name: str) -> str | None:
    """Return the path of ``ip`` or ``tc``, which may lie outside an ordinary PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")


def start_time(pid: int) -> str | None:
    """Return when a process started (clock ticks), or None if it is gone or a zombie.

    With the id it identifies a process uniquely, as ids are reused.
    """
    try:
        # bytes: the name before ")" may be of any, or cut within a character
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def processes_in(namespaces: Iterable[str]) -> list[int]:
    """Return the ids of all processes in the namespaces, except this one."""
    namespace_ids: set[tuple[int, int]] = set()
    for name in namespaces:
        with contextlib.suppress(OSError):
            status = (NAMESPACE_DIRECTORY / name).stat()
            namespace_ids.add((status.st_dev, status.st_ino))
    pids: list[int] = []
    for entry in Path("/proc").iterdir() if namespace_ids else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            status = (entry / "ns/net").stat()
            if (status.st_dev, status.st_ino) in namespace_ids:
                pids.append(int(entry.name))
    return pids


def note_process(directory: Path, pid: int) -> None:
    """Record a process that no namespace will show: one on loopback."""
    notes = directory / "processes"
    notes.mkdir(exist_ok=True)
    (notes / str(pid)).write_text(start_time(pid) or "gone")


def noted_processes(directory: Path) -> list[int]:
    """Return the ids of processes recorded in `directory` that still run."""
    pids: list[int] = []
    for note in (directory / "processes").glob("*"):
        with contextlib.suppress(OSError):
            if start_time(int(note.name)) == note.read_text():
                pids.append(int(note.name))
    return pids


def marked_processes(directory: Path) -> list[int]:
    """Return the ids of processes of a testbed on loopback by their environment, but this one's.

    It names the pacing file, also in what a process has left in the background at its end.
    """
    if not (directory / PACE_FILE).exists():
        return []
    mark = os.fsencode(f"HEADRACE_PACE={directory / PACE_FILE}")
    pids: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return [pid for pid in pids if pid != os.getpid()]


def end_processes(directory: Path, run: str, grace_s: float = GRACE_S) -> None:
    """End everything that runs in a testbed: SIGTERM, and after `grace_s` SIGKILL."""
    started: dict[int, str | None] = {}

    def running() -> dict[int, bool]:
        inside = [*processes_in(namespaces_of(run)), *marked_processes(directory)]
        noted = dict.fromkeys(inside, False)
        noted |= dict.fromkeys(noted_processes(directory), True)
        started.update((pid, start_time(pid)) for pid in noted)
        # a process that ends leaves its namespace a moment before it is gone
        leaving = (pid for pid, when in started.items() if when and start_time(pid) == when)
        return dict.fromkeys(leaving, False) | noted

    for sent, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        signalled: set[int] = set()
        until = time.monotonic() + wait_s
        while pids := running():
            for pid in set(pids) - signalled:  # a process may have started another meanwhile
                _send(pid, sent, with_group=pids[pid])
            signalled.update(pids)
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        if not pids:
            return


def remove(directory: Path, grace_s: float = GRACE_S) -> None:
    """Remove the testbed whose record lies in `directory`; idempotent."""
    run = directory.name
    end_processes(directory, run, grace_s)
    names = namespaces_of(run)
    ip = find_program("ip")
    if names and ip:
        # deleting a namespace deletes its devices; -force: another process may remove it too
        subprocess.run(
            [ip, "-force", "-batch", "-"],
            input="".join(f"netns delete {name}\n" for name in names),
            text=True,
            capture_output=True,
            timeout=_COMMAND_DEADLINE_S,
            check=False,
        )
    for names_of_host in NAMES_DIRECTORY.glob(f"{PREFIX}-{run}-*"):
        shutil.rmtree(names_of_host, ignore_errors=True)
    with contextlib.suppress(OSError):
        NAMES_DIRECTORY.rmdir()  # if that was the last
    shutil.rmtree(directory, ignore_errors=True)


def _send(pid: int, sent: signal.Signals, *, with_group: bool) -> None:
    with contextlib.suppress(OSError):
        # on loopback only the process group identifies the children of a process
        if with_group and os.getsid(pid) == pid:
            os.killpg(pid, sent)
        else:
            os.kill(pid, sent)


def guard(directory: Path, owner: int, started: str) -> None:
    """Wait until the owner is done with the testbed or gone, then remove the remains.

    A byte on standard input means it is done; the kernel closes the pipe if it dies. A child that
    it forked may still hold the pipe open, so its process is polled as well.
    """
    while not select.select([0], [], [], 1.0)[0]:
        if start_time(owner) != started:
            break
    if directory.is_dir():
        remove(directory)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
