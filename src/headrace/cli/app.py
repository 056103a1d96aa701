"""The commands of ``headrace``, gathered: shared ones, and those of every capability.

Each is registered in a table ``COMMANDS`` of `headrace.cli` or of a capability's ``cli``, and
imported when it is used: the help of the others needs none of it.
"""

import difflib
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

import headrace
from headrace.kinds import capabilities, registered_commands

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Click's, of which Typer may have a copy."""


class DeferredCommand(TyperCommand):
    """A command or group that is imported when it is used; `loaded` is the command itself."""

    def __init__(self, path: str, source: str, summary: str) -> None:
        super().__init__(path.rpartition(" ")[2], help=summary)
        self._path, self._source = path, source

    @cached_property
    def loaded(self) -> Any:
        """The command, imported."""
        from headrace.cli.answers import with_json
        from headrace.cli.former import Verb
        from headrace.cli.options import keeping_inputs

        command = pkgutil.resolve_name(self._source)
        if isinstance(command, typer.Typer):
            command.info.help = self.help
            for registered in command.registered_commands:
                assert registered.callback is not None
                name = f"{self._path} {registered.name}"
                registered.callback = with_json(keeping_inputs(registered.callback), name)
                registered.cls = Verb
            group = typer.main.get_group(command)
            _add_commands(group, self._path)
            return group
        alone = typer.Typer(add_completion=False)
        alone.command(self.name, cls=Verb)(with_json(keeping_inputs(command), self._path))
        return typer.main.get_command(alone)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Begin with the imported command, which is the context's."""
        return self.loaded.make_context(*arguments, **options)


class _Root(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _add_commands(self, "")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command by its name; an unknown one is looked for one level down, too."""
        try:
            return super().resolve_command(ctx, args)
        except _USAGE_ERROR as error:
            if near := near_verbs(args[0]):
                shown = " or ".join(f"'headrace {path}'" for path in near)
                error.message = f"{error.message} Perhaps {shown}."
            raise


def near_verbs(word: str) -> list[str]:
    """Return the paths of verbs below a capability whose last word is nearly this one."""
    try:
        paths = [path for path, _ in verbs() if " " in path]
    except ImportError:  # of a package that is missing here
        return []
    near = difflib.get_close_matches(word, {path.rpartition(" ")[2] for path in paths}, 2)
    return [path for path in paths if path.rpartition(" ")[2] in near]


def _add_commands(group: TyperGroup, path: str) -> None:
    """Add to a group the commands that are registered below its path."""
    for _, registered in registered_commands():
        for name, (source, summary) in registered["COMMANDS"].items():
            if name.rpartition(" ")[0] == path:
                group.add_command(DeferredCommand(name, source, summary))


app = typer.Typer(
    name="headrace",
    cls=_Root,
    help=(
        "Measure where a job's data moves, plan the movement, prove the plan, and run it in "
        f"PyTorch: {', '.join(capabilities())}. Every command takes --help."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _print_version(print_version: bool) -> None:
    if print_version:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]  (Typer calls it)
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


def verbs(group: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield every verb's path, such as "index plan", and its command, imported.

    Parameters
    ----------
    group : whose verbs are yielded; None: all of ``headrace``.
    """
    root: Any = typer.main.get_command(app) if group is None else group
    for name, registered in sorted(root.commands.items()):
        command = getattr(registered, "loaded", registered)
        if not hasattr(command, "commands"):
            yield name, command
            continue
        for path, verb in verbs(command):
            yield f"{name} {path}", verb
