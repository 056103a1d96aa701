"""``headrace doctor``: which capabilities can run here, and what would mend the rest."""

from typing import Annotated

import typer


def doctor_command(
    capability: Annotated[
        str | None,
        typer.Argument(help="A capability, or a verb such as demo; all if absent."),
    ] = None,
    stage: Annotated[
        str | None, typer.Argument(help="One stage of the capability, such as plan.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Check what can run here, and name what is missing and the command that mends it.

    Nothing is changed. The exit code is 0 only if all that was asked about can run.
    """
    from headrace.doctor.command import run

    raise typer.Exit(run(capability, stage, as_json=as_json))
