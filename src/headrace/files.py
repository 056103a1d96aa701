"""Reading the files that users hand us, with errors that say which and why."""

from pathlib import Path

from headrace.errors import InputError

__all__ = ["read_text"]


def read_text(path: str | Path, error: type[InputError] = InputError) -> str:
    """Return the text of a UTF-8 file.

    Raises
    ------
    error : naming the file, if it cannot be read or is no text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as found:
        raise error(f"{path}: cannot be read: {found.strerror or found}") from found
    except UnicodeDecodeError as found:
        raise error(f"{path}: cannot be read: byte {found.start} is no UTF-8") from found
