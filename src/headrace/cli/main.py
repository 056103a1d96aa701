"""Entry point of ``headrace``: the commands of `cli.app`, errors in one line, silent interrupts.

The commands take a good part of a second to load, so they are loaded where an interrupt is caught.
"""

import sys
from typing import NoReturn

from headrace.errors import HeadraceError, InputError


def main() -> None:
    """Run the command line: exit code 2 for wrong input, 1 for any other headrace error.

    A package that is not installed is wrong input; ``headrace doctor`` runs without any of them.
    Ctrl-C exits with 130, as shells expect of an interrupted command.
    """
    try:
        _run()
    except HeadraceError as error:
        _end(str(error), 2 if isinstance(error, InputError) else 1)
    except ImportError as error:
        from headrace.extras import missing_dependency

        if error.name == "headrace._native":
            _end(str(error), 1)
        if (missing := missing_dependency(error)) is None:
            raise
        _end(
            f"this command needs the package {missing.name}: {missing.command}; headrace doctor "
            "checks the others",
            2,
        )
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        from headrace.cli.app import app

        app()
    except ImportError:
        if sys.argv[1:2] != ["doctor"]:
            raise
        from headrace.doctor.command import run_plainly

        sys.exit(run_plainly(sys.argv[2:]))


def _end(message: str, code: int) -> NoReturn:
    try:
        from headrace.cli.console import terminal, text_of
    except ImportError:
        sys.stderr.write(f"error: {message}\n")
    else:
        terminal(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {text_of(message)}")
    sys.exit(code)


if __name__ == "__main__":
    main()
