"""Files of the cache folder: written as a whole, and skipped where they cannot be read."""

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from headrace.artifact import Artifact, canonical_json
from headrace.errors import ArtifactError, HeadraceError

_T = TypeVar("_T")
log = logging.getLogger(__name__)


def write_cached(path: Path, artifact: Artifact, consequence: str) -> None:
    """Write an artifact into the cache; a failure is logged as a warning, with its consequence."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        artifact.save(path)
    except (ArtifactError, OSError) as error:
        log.warning("cannot be cached, %s: %s", consequence, error)


def read_cached(path: Path, load: Callable[[Path], _T], warning: str) -> _T | None:
    """Return a file's value; None if it is absent or, with a warning, cannot be read."""
    try:
        return load(path) if path.exists() else None
    except (HeadraceError, OSError) as error:  # of a folder that this user may not look into, say
        log.warning("%s: %s", warning, error)
        return None


def cache_key(value: Any) -> str:
    """Return a name that depends on a value of JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


def newest_files(folder: Path, suffix: str) -> list[Path]:
    """Return files, the newest first; none if the folder cannot be read."""
    dated: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in folder.iterdir():
            if path.suffix == suffix:
                with suppress(OSError):
                    dated.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(dated, reverse=True)]


def keep_newest(folder: Path, suffix: str, files: int) -> None:
    """Delete all but so many files, the oldest first; what cannot be deleted stays."""
    for old in newest_files(folder, suffix)[files:]:
        with suppress(OSError):
            old.unlink()
