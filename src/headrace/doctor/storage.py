"""Checks of settings, and of folders that headrace writes to; nothing is written."""

import os
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path

from headrace.doctor.finding import CheckFinding, Status
from headrace.doctor.probing import probe
from headrace.errors import InputError
from headrace.settings import Settings, child_environment
from headrace.units import size

_EVERY_SECTION = """
import json
from headrace.doctor.storage import section_problems
from headrace.settings import sections
problems, warnings = section_problems(sections())
print(json.dumps({"problems": problems, "warnings": warnings}))
"""

_SMALL_BYTES = 100 << 20
"""Free space below which a profile or a book of a large cluster may not fit."""


def check_settings() -> CheckFinding:
    """Check the environment variables of all capabilities."""
    result = probe(_EVERY_SECTION)
    if result.problem:  # a package of a capability is missing, and has its own finding
        problems, warned = section_problems([Settings])
    else:
        problems, warned = result.answers[-1]["problems"], result.answers[-1]["warnings"]
    if problems:
        return CheckFinding.missing(
            "settings",
            "; ".join(problems),
            remedy="set the variable as the text says, or unset it",
        )
    if warned:
        return CheckFinding.limited(
            "settings",
            "; ".join(warned),
            remedy="correct or unset the variable",
        )
    return CheckFinding.ok("settings", "every HEADRACE_ variable is valid")


def encrypts() -> bool:
    """Return whether the environment asks for TLS, which jobs then do not run without."""
    variable = "HEADRACE_TLS"
    try:
        return Settings.from_environment({variable: child_environment().get(variable, "")}).tls
    except InputError:  # of the check of settings
        return False


def section_problems(classes: Iterable[type[Settings]]) -> tuple[list[str], list[str]]:
    """Return the errors and warnings of reading the environment by classes of settings."""
    problems: list[str] = []
    with warnings.catch_warnings(record=True) as unknown:
        warnings.simplefilter("always")
        for settings_class in classes:
            try:
                settings_class.from_environment()
            except InputError as error:
                problems.append(str(error))
    return list(dict.fromkeys(problems)), list(
        dict.fromkeys(str(warning.message) for warning in unknown)
    )


def check_cache() -> CheckFinding:
    """Check the folder that keeps profiles, plans and costs for later jobs."""
    name, remedy = "cache", "export HEADRACE_CACHE=FOLDER, with a folder that can be written"
    loss = "later jobs measure and plan again"
    variable = "HEADRACE_CACHE"  # alone: an error of another one is of the check of settings
    try:
        folder = Settings.from_environment(
            {variable: child_environment().get(variable, "")}
        ).cache_folder
    except InputError as error:
        return CheckFinding.missing(name, str(error))
    if folder is None:
        return CheckFinding.limited(
            name,
            f"this user has no home folder: {loss}",
            remedy=remedy,
        )
    if problem := _unwritable(folder):
        return CheckFinding.limited(name, f"{problem}: {loss}", remedy=remedy)
    free = shutil.disk_usage(_existing(folder)).free
    text = f"{folder} has {size(_bytes_in(folder))}, {size(free)} are free"
    if free < _SMALL_BYTES:
        return CheckFinding.limited(name, text, remedy=remedy)
    return CheckFinding.ok(name, text)


def check_temporary() -> CheckFinding:
    """Check the folder for temporary files, where testbeds and jobs have their sockets."""
    name = "temporary-files"
    remedy = "export TMPDIR=FOLDER, with a folder that can be written"
    candidates = [Path(folder) for folder in _temporary_folders()]
    # Python makes none of them: one that is not there is passed over
    usable = (folder for folder in candidates if not _unwritable(folder) and folder.is_dir())
    if (folder := next(usable, None)) is None:
        text = f"none of {', '.join(map(str, candidates))} can be written"
        return CheckFinding.missing(name, text, remedy=remedy)
    free = shutil.disk_usage(folder).free
    status = Status.OK if free >= _SMALL_BYTES else Status.LIMITED
    return CheckFinding(
        name=name,
        status=status,
        text=f"{folder} has {size(free)} free",
        remedy="" if status is Status.OK else remedy,
    )


def _temporary_folders() -> list[str]:
    """Return the folders that Python tries, in its order."""
    environment = child_environment()
    named = (environment.get(variable) for variable in ("TMPDIR", "TEMP", "TMP"))
    return [*filter(None, named), "/tmp", "/var/tmp", "/usr/tmp"]


def _unwritable(folder: Path) -> str:
    """Return why a folder, or one above it that would hold it, cannot be written; empty if it can.

    The file system is asked: its answer is that of a write, also on one that is read-only.
    """
    try:
        place = _existing(folder)
        if not place.is_dir():
            return f"{place} is no folder"
        return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"
    except OSError as error:
        return f"{folder}: {error.strerror}"


def _existing(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total
