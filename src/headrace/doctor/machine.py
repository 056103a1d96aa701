"""Checks of the machine and its kernel; none needs root, and none changes anything."""

import os
import platform
import resource
import shutil
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from headrace.doctor.finding import CheckFinding, Status
from headrace.doctor.probing import probe
from headrace.testbed.privileges import unavailable_reason
from headrace.units import size

_COMPILERS = ("c++", "g++", "clang++")
_OPEN_FILES = 1024
"""Limit from which on groups of hundreds of ranks need no thought."""
_OPEN_FILES_BESIDE_RANKS = 32
"""Of a rank that are no connections: the interpreter's, the store's, the group's own."""
_SMALL_SHM_BYTES = 64 << 20
"""Docker's default for /dev/shm, less than the batches of a DataLoader's workers need."""

_NAMESPACE = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.unshare(0x40000000)  # CLONE_NEWNET, of this process alone
print(json.dumps({"problem": os.strerror(ctypes.get_errno()) if failed else ""}))
"""

_COPY = """
import ctypes, json, os
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
source = ctypes.create_string_buffer(b"headrace", 8)
parent = os.getpid()
child = os.fork()
if child == 0:  # as ranks of one host are, it is no ancestor of the process that it reads
    target = ctypes.create_string_buffer(8)
    pieces = [Piece(ctypes.addressof(place), 8) for place in (target, source)]
    copied = libc.process_vm_readv(
        parent, ctypes.byref(pieces[0]), 1, ctypes.byref(pieces[1]), 1, 0
    )
    problem = "" if copied == 8 else os.strerror(ctypes.get_errno())
    print(json.dumps({"problem": problem}), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


_TRIED_PYTHONS = ((3, 11), (3, 12), (3, 13))


def check_python() -> CheckFinding:
    """Check the interpreter: one of the versions of CPython that headrace is tried on."""
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] in _TRIED_PYTHONS and platform.python_implementation() == "CPython":
        return CheckFinding.ok("python", text)
    return CheckFinding.limited(
        "python",
        f"{text}: untried, CPython 3.11 to 3.13 are tried",
        remedy="python3.11 -m venv FOLDER, if anything fails",
    )


def check_kernel() -> CheckFinding:
    """Check the system: Linux, and its release."""
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() == "Linux":
        return CheckFinding.ok("kernel", text)
    return CheckFinding.missing("kernel", text, remedy="use Linux, such as a container")


def check_processors() -> CheckFinding:
    """Report the processors that this process may use, and the vectors that they have."""
    processors = len(os.sched_getaffinity(0))
    flags: set[str] = set()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                flags = {*line.split()}
                break
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags
    kernels = "AVX-512" if wide else "AVX2" if "avx2" in flags else "portable"
    text = f"{processors} usable, {kernels} kernels"
    return CheckFinding.ok("processors", text)


def check_network() -> CheckFinding:
    """Check that a process reaches itself over loopback, and name the interfaces."""
    interfaces = ", ".join(name for _, name in socket.if_nameindex())
    try:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = listener.getsockname()
            stack.enter_context(socket.create_connection(address, timeout=10.0))
    except OSError as error:
        return CheckFinding.missing(
            "network",
            f"127.0.0.1 cannot be reached: {error.strerror or error}; interfaces {interfaces}",
            remedy="ip link set lo up",
        )
    return CheckFinding.ok("network", f"127.0.0.1 is reached; interfaces {interfaces}")


def check_shared_memory() -> CheckFinding:
    """Check sealed anonymous memory, through which ranks of one host move data."""
    name = "shared-memory"
    try:
        os.close(os.memfd_create("headrace-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return CheckFinding.limited(
            name,
            f"memfd_create fails ({error.strerror}): ranks of one host need TCP",
            remedy="export HEADRACE_SHARED_MEMORY=off",
        )
    folder = Path("/dev/shm")
    total = shutil.disk_usage(folder).total if folder.exists() else 0
    if total <= _SMALL_SHM_BYTES:
        return CheckFinding.limited(
            name,
            f"ranks share memory; /dev/shm has {size(total)}, which is small for the workers "
            "of a DataLoader",
            remedy="mount -o remount,size=2G /dev/shm (docker run --shm-size=2g)",
        )
    return CheckFinding.ok(name, f"ranks share memory; /dev/shm has {size(total)}")


def check_copies() -> CheckFinding:
    """Check whether a process may read a sibling's memory, as other tools do (process_vm_readv)."""
    name, tools = "ptrace", "profilers that attach to a rank, and one-copy transports of MPI"
    result = probe(_COPY, deadline_s=30.0)
    problem = result.answers[-1]["problem"] if result.answers else result.problem or "no answer"
    if not problem:
        return CheckFinding.ok(name, "processes of one user may read each other's memory")
    return CheckFinding.limited(
        name,
        f"process_vm_readv fails ({problem}): for {tools}; headrace does without",
        remedy="sysctl kernel.yama.ptrace_scope=0 (docker run --cap-add SYS_PTRACE)",
    )


def check_namespaces() -> CheckFinding:
    """Check whether a testbed's hosts can be network namespaces."""
    reason = unavailable_reason()
    if reason is None:
        result = probe(_NAMESPACE, deadline_s=30.0)
        problem = result.answers[-1]["problem"] if result.answers else result.problem
        reason = f"unshare fails: {problem}" if problem or not result.answers else None
    if reason is None:
        return CheckFinding.ok("namespaces", "network namespaces can be made")
    remedy = "run as root (docker run --privileged)"
    if "iproute2" in reason:
        remedy = "apt-get install iproute2"
    return CheckFinding.missing("namespaces", reason, remedy=remedy)


def check_open_files() -> CheckFinding:
    """Check the limit of open files, of which a group needs one for every peer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES:
        text = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}"
        return CheckFinding.ok("open-files", text)
    ranks = max(0, soft - _OPEN_FILES_BESIDE_RANKS)
    raised = hard if 0 < hard < _OPEN_FILES else _OPEN_FILES
    remedy = f"ulimit -n {raised}" if raised > soft else f"as root: ulimit -n {_OPEN_FILES}"
    return CheckFinding(
        name="open-files",
        status=Status.LIMITED if ranks > 1 else Status.MISSING,
        text=f"at most {soft}: enough for groups of {ranks} ranks",
        remedy=remedy,
    )


def check_compiler() -> CheckFinding:
    """Check for a C++ compiler, which only builds and torch.compile need."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is not None:
        return CheckFinding.ok("compiler", compiler)
    return CheckFinding.missing(
        "compiler",
        f"none of {', '.join(_COMPILERS)} is in PATH",
        remedy="apt-get install g++",
    )
