"""``python confined.py CONFINEMENT COMMAND...``: a command in a process that lacks something.

It is run by its path, and imports nothing of headrace.
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 24, 22, 38
_CAP_SYS_ADMIN = 21
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_RDONLY, _MS_REC, _MS_PRIVATE = 1, 0x4000, 1 << 18
_SECCOMP_MODE_FILTER = 2
_LOAD_NUMBER, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_SYSTEM_CALLS = {"x86_64": (101, 310), "aarch64": (117, 270)}
"""Numbers of ptrace and process_vm_readv."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def few_files() -> None:
    """Leave 64 open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def no_namespaces() -> None:
    """Take away the capability that makes namespaces; other users than root lack it."""
    if os.geteuid() == 0:
        _check(_libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0))


def no_root() -> None:
    """Take away all capabilities: root is then a user like others."""
    if os.geteuid() == 0:
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))


def read_only_home() -> None:
    """Make the home folder read-only, for this process and its children."""
    home = Path.home()
    if os.geteuid() != 0:
        home.chmod(0o500)
        return
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _check(_libc.mount(b"none", os.fsencode(home), b"tmpfs", _MS_RDONLY, None))


def no_loopback() -> None:
    """Enter a network without any interface that is up."""
    _check(_libc.unshare(_CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWNET | _CLONE_NEWUSER))


def no_ptrace() -> None:
    """Forbid to trace processes and to read their memory."""
    rules = [struct.pack("HBBI", _LOAD_NUMBER, 0, 0, 0)]
    calls = _SYSTEM_CALLS[os.uname().machine]
    for place, number in enumerate(calls):
        rules.append(struct.pack("HBBI", _JUMP_EQUAL, len(calls) - place, 0, number))
    rules.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    rules.append(struct.pack("HBBI", _RETURN, 0, 0, _EPERM))
    code = ctypes.create_string_buffer(b"".join(rules))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
    )
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


CONFINEMENTS: dict[str, Callable[[], None]] = {
    "few-files": few_files,
    "no-namespaces": no_namespaces,
    "read-only-home": read_only_home,
    "no-loopback": no_loopback,
    "no-root": no_root,
    "no-ptrace": no_ptrace,
    "none": lambda: None,
}

if __name__ == "__main__":
    CONFINEMENTS[sys.argv[1]]()
    os.execv(sys.argv[2], sys.argv[2:])
