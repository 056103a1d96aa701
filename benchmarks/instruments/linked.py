"""Environments whose packages are links to those of this one: made in a second, from the disk."""

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def link_distributions(site: Path, names: Iterable[str]) -> None:
    """Link distributions, and all that they need without extras, into a site-packages folder."""
    for name in _with_requirements(names):
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            if top in ("..", "__pycache__") or (site / top).exists():
                continue
            located = Path(str(file.locate()))
            (site / top).symlink_to([located, *located.parents][len(file.parts) - 1])


def _with_requirements(names: Iterable[str]) -> set[str]:
    """Return distributions and what they need in turn, without extras."""
    closure: set[str] = set()
    pending = sorted(names)
    while pending:
        name = pending.pop()
        if name in closure:
            continue
        closure.add(name)
        required = required_names(metadata.requires(name) or ())
        pending += [name for name in required if _is_installed(name)]
    return closure


def required_names(requirements: Iterable[str]) -> list[str]:
    """Return the names of the distributions in lines of metadata, without those of extras."""
    names: list[str] = []
    for line in requirements:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement.strip())
        if name is not None and "extra" not in marker:
            names.append(name[0])
    return names


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
