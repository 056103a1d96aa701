"""Memory of this host: what a process can have, and the largest cache."""

from pathlib import Path

_LIMITS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of a control group by controller (version 2 has one tree for all): limit, usage, and the
row of ``memory.stat`` with cached files, which the kernel drops first."""


def available_host_bytes(system: Path = Path("/")) -> int | None:
    """Return the bytes that a process can allocate; None if that cannot be told.

    It is the least of what the system and the control groups of the process leave.

    Parameters
    ----------
    system : root of the files of the kernel.
    """
    try:
        rows = (system / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    system_bytes = [int(row.split()[1]) << 10 for row in rows if row.startswith("MemAvailable:")]
    return min((*system_bytes, *_group_bytes(system))) if system_bytes else None


def last_level_cache_bytes(system: Path = Path("/")) -> int | None:
    """Return the bytes of the first processor's largest cache; None if that cannot be told.

    Parameters
    ----------
    system : root of the files of the kernel.
    """
    levels = (system / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [level.read_text().strip() for level in levels]
    shifts = {"K": 10, "M": 20, "G": 30}
    return max(
        (int(text[:-1]) << shifts[text[-1]] for text in sizes if text[-1:] in shifts), default=None
    )


def _group_bytes(system: Path) -> list[int]:
    """Return the free bytes of each control group that limits the memory of the process."""
    try:
        rows = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left: list[int] = []
    for row in rows:
        _, controllers, path = row.split(":", 2)
        for controller, files in _LIMITS.items():
            if controller in controllers.split(","):
                root = system / "sys/fs/cgroup" / controller
                folder = root / path.lstrip("/")
                folders = [folder, *folder.parents]
                for group in folders[: folders.index(root) + 1]:
                    left += _left(group, *files)
    return left


def _left(group: Path, limit: str, usage: str, cached: str) -> list[int]:
    """Return the bytes that one group leaves; nothing where it has no limit or no such files."""
    try:
        most, used = ((group / name).read_text().strip() for name in (limit, usage))
        rows = (group / "memory.stat").read_text().splitlines()
        cached_bytes = sum(int(row.split()[1]) for row in rows if row.split()[0] == cached)
        return [int(most) - int(used) + cached_bytes] if most.isdigit() else []
    except (OSError, ValueError, IndexError):
        return []
