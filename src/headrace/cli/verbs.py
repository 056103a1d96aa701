"""The verbs of the command line, as they are registered."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command


def verbs(root: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield every verb's path, such as "index plan", and its command, imported.

    Parameters
    ----------
    root : group of commands whose verbs are yielded; None: all of ``headrace``.
    """
    if root is None:
        from headrace.cli.app import app

        root = get_command(app)
    for name, registered in sorted(root.commands.items()):
        command = getattr(registered, "loaded", registered)
        if not hasattr(command, "commands"):
            yield name, command
            continue
        for path, verb in verbs(command):
            yield f"{name} {path}", verb
