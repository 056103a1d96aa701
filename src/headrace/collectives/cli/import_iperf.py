"""``headrace collectives import-iperf``: a profile from the results of iperf3."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headrace.cli.answers import WrittenFile, result_of
from headrace.cli.console import terminal, text_of
from headrace.cli.options import output_option

if TYPE_CHECKING:
    from headrace.collectives.measure import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkResult:
    """A measured network: racks are groups of ranks."""

    file: WrittenFile
    name: str
    ranks: int
    hosts: int
    groups: list[list[int]]
    links: int
    took_s: float
    valid_for_s: float


def import_iperf_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Results of 'iperf3 -J' (forward, -R or --bidir), one or more for every pair of "
            "hosts. CLIENT-to-SERVER.json names its hosts; others are named by address.",
            metavar="FILE...",
        ),
    ],
    output: Annotated[Path, output_option("File to write: the profile.")],
    rtt: Annotated[
        Path | None,
        typer.Option(help="Lines 'host,host,us': round trips by ping, before those of iperf3."),
    ] = None,
) -> NetworkResult:
    """Make a profile from bandwidths that iperf3 measured, one rank for every host.

    Example: headrace collectives import-iperf a-to-b.json b-to-a.json -o network.profile
    """
    from headrace.collectives.measure.imports.iperf.profile import profile_from_iperf
    from headrace.collectives.measure.imports.iperf.read import read_round_trips

    round_trips = None if rtt is None else read_round_trips(rtt)
    saved = save_profile(profile_from_iperf(files, round_trips=round_trips), output)
    terminal(stderr=True).print(
        "Runs of one pair at a time do not show what several hosts share; 'headrace collectives "
        "measure' does.",
        soft_wrap=True,
    )
    return saved


def save_profile(profile: "Profile", output: Path) -> NetworkResult:
    """Write a profile, print what it says, and return its figures."""
    profile.save(output)
    table = Table(box=None, show_header=False)
    for row in profile.summary():
        table.add_row(*row)
    out = terminal()
    out.print(table)
    out.print(f"Wrote [bold]{text_of(output)}[/].", soft_wrap=True)
    topology = profile.topology
    return result_of(
        NetworkResult,
        profile,
        file=WrittenFile.at(output),
        name=topology.name,
        ranks=topology.ranks,
        hosts=len(topology.hosts),
        groups=[list(group) for group in profile.groups],
        links=len(topology.links),
    )
