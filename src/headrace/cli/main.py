"""Entry point of ``headrace``: the commands of `cli.app`, errors in one line, silent interrupts.

The commands take a good part of a second to load, so they are loaded where an interrupt is caught.
"""

import sys

from headrace.errors import HeadraceError, InputError


def main() -> None:
    """Run the command line: exit code 2 for wrong input, 1 for any other headrace error.

    Ctrl-C exits with 130, as shells expect of an interrupted command.
    """
    try:
        from headrace.cli.app import app

        app()
    except HeadraceError as error:
        from headrace.cli.console import terminal, text_of

        terminal(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {text_of(error)}")
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
