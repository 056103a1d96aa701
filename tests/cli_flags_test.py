"""Commands and flags are frozen in golden/cli.txt (pytest --regenerate rewrites it)."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from headrace.cli.app import DeferredCommand, app
from headrace.errors import ArtifactError


def loaded(command: Any) -> Any:
    """The command itself, which is imported when it is used; its line in the help is its own."""
    if not isinstance(command, DeferredCommand):
        return command
    assert command.help == " ".join(command.loaded.help.partition("\n\n")[0].split())
    return command.loaded


def lines(command: Any, path: tuple[str, ...] = ("headrace",)) -> Iterator[str]:
    command = loaded(command)
    yield " ".join(path)
    for parameter in command.params:
        if "--install-completion" in parameter.opts or "--show-completion" in parameter.opts:
            continue  # Typer's own, and only where it knows the shell
        yield "    " + describe(parameter)
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from lines(child, (*path, name))


def describe(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        text = parameter.name.upper()
    else:
        text = " / ".join([", ".join(parameter.opts), *parameter.secondary_opts])
    if not getattr(parameter, "is_flag", False):
        kind = parameter.type_descriptor.annotation
        # without modules: that of Path is another one in Python 3.13
        name = kind.__name__ if isinstance(kind, type) else re.sub(r"\b(\w+\.)+", "", str(kind))
        text += f" ({name})"
    if getattr(parameter, "multiple", False):
        text += " repeated"
    if parameter.nargs == -1:
        text += " any number"
    return text + (" required" if parameter.required else "")


def test_commands_and_flags_are_frozen(golden: Callable[[str, bytes], None]) -> None:
    text = "\n".join(lines(typer.main.get_command(app))) + "\n"
    golden("cli.txt", text.encode())


def test_every_command_and_option_has_a_help_text() -> None:
    def check(command: Any, path: str) -> None:
        command = loaded(command)
        assert command.help, f"{path} has no help"
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{path} {parameter.name} has no help"
        for name, child in getattr(command, "commands", {}).items():
            check(child, f"{path} {name}")

    check(typer.main.get_command(app), "headrace")


def outputs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that writes a file."""
    command = loaded(command)
    if any({"-o", "--output"} & set(parameter.opts) for parameter in command.params):
        yield path
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from outputs(child, (*path, name))


def test_a_missing_folder_for_the_output_is_an_error_before_all_else(tmp_path: Path) -> None:
    """Some commands worked for minutes and then could not write, others made the folder."""
    writing = list(outputs(typer.main.get_command(app)))
    assert len(writing) >= 13
    for path in writing:
        # Nothing else is given: the folder is looked at first, whatever the command needs.
        outcome = CliRunner().invoke(app, [*path, "-o", str(tmp_path / "missing" / "file")])
        assert isinstance(outcome.exception, ArtifactError), f"{path}: {outcome.output}"
        assert "there is no folder" in str(outcome.exception), path
    assert list(tmp_path.iterdir()) == []
