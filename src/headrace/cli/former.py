"""Earlier spellings of options, which verbs take with a warning for a release.

A verb that runs a command takes it after ``--``; see `Verb`.
"""

import re
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from headrace.cli.console import terminal, text_of

_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Click's, of which Typer may have a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FormerSpelling:
    name: str
    unit: str


def Former(name: str, *, unit: str = "") -> Any:  # noqa: N802  (beside typer.Option)
    """Return the earlier spelling of an option, which is taken with a warning until it is removed.

    It stands in the option's annotation.

    Parameters
    ----------
    name : the option's earlier name, or its present one if the unit alone is new.
    unit : of a number without one.
    """
    return _FormerSpelling(name=name, unit=unit)


class Verb(TyperCommand):
    """A command that takes the earlier spellings of its options; see `Former`.

    An unknown option of one that runs a command may be that command's: the error says so.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments in their present spelling."""
        try:
            return super().parse_args(ctx, self._present(args))
        except _USAGE_ERROR as error:
            if hasattr(error, "option_name") and "--" not in args and self._runs_command():
                error.possibilities = None
                error.message = f"{error.message}. Options of the command it runs come after '--'."
            raise

    def _runs_command(self) -> bool:
        return any("after '--'" in (getattr(part, "help", "") or "") for part in self.params)

    def _present(self, arguments: list[str]) -> list[str]:
        formers = self._formers()
        present: list[str] = []
        remaining = list(arguments)
        while remaining:
            argument = remaining.pop(0)
            if argument == "--":
                return [*present, argument, *remaining]
            name, equals, value = argument.partition("=")
            if name not in formers:
                present.append(argument)
                continue
            former, option = formers[name]
            words = [option]
            if former.unit and (equals or remaining):
                value = value if equals else remaining.pop(0)
                words.append(f"{value}{former.unit}" if _is_number(value) else value)
            elif equals:
                words.append(value)
            written = [name, value] if len(words) > 1 else [name]
            if words != written:
                _warn_of_former(written, words)
            present += ["=".join(words)] if len(words) > 1 else words
        return present

    def _formers(self) -> dict[str, tuple[_FormerSpelling, str]]:
        """Return the earlier spellings, and the present names of their options."""
        hints = get_type_hints(self.callback, include_extras=True)
        return {
            former.name: (former, max(parameter.opts, key=len))
            for parameter in self.params
            for former in get_args(hints.get(str(parameter.name)))[1:]
            if isinstance(former, _FormerSpelling)
        }


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d*)?", text, re.ASCII) is not None


def _warn_of_former(written: list[str], present: list[str]) -> None:
    terminal(stderr=True).print(
        f"[yellow]warning:[/] {text_of(' '.join(written))} is now {text_of(' '.join(present))}; "
        "the earlier spelling will be removed in the next release.",
        soft_wrap=True,
        highlight=False,
    )
