"""``headrace collectives``: measure a network, and plan collectives for it."""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import headrace.artifact as artifact_io
from headrace.collectives.demand import Collective
from headrace.errors import InputError
from headrace.settings import Settings
from headrace.topology import Topology

if TYPE_CHECKING:
    from headrace.collectives.measure import Profile

app = typer.Typer(
    help="Move tensors between ranks: measure the network, plan for it.", no_args_is_help=True
)

Report = Callable[[str, float], None]


@app.command()
def measure(
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the profile.")],
    testbed: Annotated[
        Path | None,
        typer.Option(help="TOML file of a testbed to bring up and measure; else use torchrun."),
    ] = None,
    order: Annotated[
        str,
        typer.Option(help="Hosts of the testbed's ranks: rack, interleaved, random, or names."),
    ] = "rack",
    seed: Annotated[
        int | None, typer.Option(help="For --order random: the same seed, same order.")
    ] = None,
) -> None:
    """Measure links, groups and shared capacities, and write a profile.

    Under torchrun ('torchrun ... -m headrace collectives measure -o FILE') between its ranks;
    with --testbed between the hosts of a testbed that is up for as long as it takes.
    """
    settings = Settings.from_environment()
    console = Console(stderr=True)
    if not settings.rank:  # of all ranks, rank 0 writes
        artifact_io.check_target(output)
    with _progress(console, visible=not settings.rank) as report:
        profile: Profile | None
        if testbed is not None:
            profile = _measure_testbed(testbed, order, seed, report)
        elif settings.rank is not None:
            from headrace.collectives.measure.launch import measure_torchrun

            profile = measure_torchrun(progress=report)
        else:
            raise InputError(
                "nothing to measure: RANK is not set and --testbed is not given; start the ranks "
                "with torchrun, or name a testbed's TOML file"
            )
    if profile is None:
        return
    profile.save(output)
    table = Table(box=None, show_header=False)
    for row in profile.summary():
        table.add_row(*row)
    out = Console()
    out.print(table)
    out.print(f"Wrote [bold]{output}[/].", soft_wrap=True)


def _measure_testbed(file: Path, order: str, seed: int | None, report: Report) -> "Profile":
    from headrace.collectives.measure.launch import measure_testbed
    from headrace.testbed import Testbed, TestbedSpec

    spec = TestbedSpec.load(file)
    hosts = [spec.hosts[index].name for index in spec.order(order, seed=seed)]
    report("building the testbed", 0.0)
    with Testbed.up(spec) as up:
        if up.fallback_reason:
            Console(stderr=True).print(
                f"Measuring on loopback, paced by the transport: {up.fallback_reason}.",
                soft_wrap=True,
            )
        return measure_testbed(up, hosts, progress=report)


@app.command()
def plan(
    source: Annotated[
        Path,
        typer.Argument(help="A profile or a topology.", metavar="PROFILE"),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the plan book.")],
    collective: Annotated[
        list[Collective] | None,
        typer.Option(help="Plan only this one; may be repeated.", show_default="all"),
    ] = None,
) -> None:
    """Find the best verified plan for every collective and size, and write a plan book."""
    from headrace.cli.entries import entry_tables
    from headrace.collectives.plan.book import build_book

    artifact_io.check_target(output)
    topology, groups = _read_network(source)
    console = Console(stderr=True)
    with _progress(console, visible=True) as report:
        book = build_book(
            topology,
            groups=groups,
            collectives=tuple(collective or Collective),
            progress=report,
        )
    book.save(output)
    out = Console()
    for shown in entry_tables(entry for entry in book.entries if entry.root == 0):
        out.print(shown)  # the other roots' entries say much the same
    out.print(f"Wrote [bold]{output}[/]: {len(book.entries)} plans.", soft_wrap=True)


def _read_network(path: Path) -> tuple[Topology, tuple[tuple[int, ...], ...] | None]:
    artifact = artifact_io.load(path)
    if artifact.kind == "topology":
        return Topology.load(path), None
    if artifact.kind == "profile":
        from headrace.collectives.measure import Profile

        profile = Profile.from_artifact(artifact, str(path))
        _warn_if_old(profile, path)
        return profile.topology, profile.groups
    raise InputError(
        f"{path}: field 'kind' is {artifact.kind!r}, needs 'profile' "
        "(from 'headrace collectives measure') or 'topology'"
    )


def _warn_if_old(profile: "Profile", path: Path) -> None:
    now = time.time()
    if profile.expired(now):
        Console(stderr=True).print(
            f"[yellow]warning:[/] {path} was measured {_age(now - profile.measured_at)} ago "
            f"and is valid for {_age(profile.valid_for_s)}; if the network may have changed, "
            "measure it again with 'headrace collectives measure'.",
            soft_wrap=True,
            highlight=False,
        )


def _age(seconds: float) -> str:
    for unit, one in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * one:
            return f"{seconds / one:.0f} {unit}"
    return f"{seconds:.0f} seconds"


@contextlib.contextmanager
def _progress(console: Console, *, visible: bool) -> Generator[Report]:
    """Show a bar while the block runs; it goes when the block ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not visible) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
