"""``headrace collectives``: measure a network, and plan collectives for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.answers import WrittenFile
from headrace.cli.console import terminal, text_of, warn_if_busy
from headrace.cli.former import Former
from headrace.cli.options import (
    Order,
    Seed,
    TestbedFile,
    check_order,
    output_option,
    time_option,
)
from headrace.cli.progress import Report, progress
from headrace.collectives.cli.adapt import adapt_command
from headrace.collectives.cli.entry_results import EntryResult
from headrace.collectives.cli.import_iperf import NetworkResult, import_iperf_command, save_profile
from headrace.collectives.cli.method import (
    CostModelName,
    EffortLevel,
    Model,
    SearchEffort,
    charged,
)
from headrace.collectives.cli.network import read_network
from headrace.collectives.cli.sketch import sketch_command
from headrace.collectives.cli.synthesize import synthesize_command
from headrace.collectives.cli.trace import trace_command
from headrace.collectives.demand import STANDARD, Collective
from headrace.errors import InputError
from headrace.settings import Settings
from headrace.units import parse_time

if TYPE_CHECKING:
    from headrace.collectives.measure import ProbeEffort, Profile
    from headrace.collectives.plan.book import PlanBook

app = typer.Typer(no_args_is_help=True)

app.command("adapt")(adapt_command)
app.command("synthesize")(synthesize_command)
app.command("sketch")(sketch_command)
app.command("import-iperf")(import_iperf_command)
app.command("trace")(trace_command)


@app.command("measure")
def measure_command(
    output: Annotated[Path, output_option("File to write: the profile.")],
    testbed: TestbedFile = None,
    order: Order = "rack",
    seed: Seed = 0,
    time_limit: Annotated[
        str,
        time_option("Longest time; what does not fit is dropped, with a note"),
        Former("--budget", unit="s"),
    ] = "12s",
) -> NetworkResult | None:
    """Measure links, groups and shared capacities, and write a profile.

    Under torchrun ('torchrun ... -m headrace collectives measure -o FILE') between its ranks;
    with --testbed between the hosts of a testbed that is up for as long as it takes.

    Example: headrace collectives measure --testbed testbed.toml --time-limit 12s -o network.profile
    """
    settings = Settings.from_environment()
    check_order(order, seed, testbed)
    console = terminal(stderr=True)
    with progress(console, visible=not settings.rank) as report:
        from headrace.collectives.measure import ProbeEffort

        effort = ProbeEffort(budget_s=parse_time(time_limit, "--time-limit", least_s=1))
        profile: Profile | None
        if testbed is not None:
            profile = _measure_testbed(testbed, order, seed, effort, report)
        elif settings.rank is not None:
            from headrace.collectives.measure.launch import measure_torchrun

            profile = measure_torchrun(effort=effort, progress=report)
        else:
            raise InputError(
                "nothing to measure: RANK is not set and --testbed is not given; start the ranks "
                "with torchrun, or name a testbed's TOML file"
            )
    if profile is None:
        return None
    saved = save_profile(profile, output)
    warn_if_busy(profile.provenance)
    return saved


def _measure_testbed(
    file: Path, order: str, seed: int, effort: "ProbeEffort", report: Report
) -> "Profile":
    from headrace.cli.testbed import testbed_for
    from headrace.collectives.measure.launch import measure_testbed
    from headrace.testbed import TestbedSpec

    spec = TestbedSpec.load(file)
    hosts = [spec.hosts[index].name for index in spec.order(order, seed=seed)]
    with testbed_for(spec, "Measuring", report) as up:
        return measure_testbed(up, hosts, effort=effort, progress=report)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBookResult:
    """A plan book, and the collectives that Ctrl-C left to templates."""

    file: WrittenFile
    plans: list[EntryResult]
    interrupted: list[str]


@app.command("plan")
def plan_command(
    source: Annotated[
        Path,
        typer.Argument(help="A profile or a topology.", metavar="PROFILE"),
    ],
    output: Annotated[Path, output_option("File to write: the plan book.")],
    collective: Annotated[
        list[Collective] | None,
        typer.Option(help="Collective, any number of times.", show_default="all"),
    ] = None,
    cost_model: CostModelName = Model.EXECUTOR,
    search: Annotated[
        bool,
        typer.Option(
            help="Search for programs beside the templates, for collectives without a root: up to "
            "a minute for a few ranks."
        ),
    ] = False,
    effort: SearchEffort = EffortLevel.QUICK,
    seed: Seed = 0,
) -> PlanBookResult:
    """Find the best verified plan for every collective and size, and write a plan book.

    Where no template fits the links, as in a mesh of GPUs, programs are searched for in any case.

    Example: headrace collectives plan network.profile -o network.book
    """
    from headrace.collectives.cli.entries import entry_result
    from headrace.collectives.plan.book import build_book
    from headrace.collectives.plan.generators.table import ALL_GENERATORS
    from headrace.collectives.plan.generators.templates.rows import TEMPLATES

    for asked in collective or ():
        if asked not in STANDARD:
            raise InputError(
                f"--collective is {asked}, which only a demand describes: headrace collectives "
                "synthesize --demand FILE.json plans one"
            )
    topology, groups = read_network(source)
    topology, method = charged(topology, cost_model, effort, seed)
    console = terminal(stderr=True)
    with progress(console, visible=True) as report:
        book = build_book(
            topology,
            groups=groups,
            collectives=tuple(collective or STANDARD),
            generators=ALL_GENERATORS if search else TEMPLATES,
            method=method,
            progress=report,
        )
    book.save(output)
    planned = {entry.collective for entry in book.entries}
    missing = [name.value for name in collective or STANDARD if name not in planned]
    _print(book, output, missing, futile_search=search and method.model.streaming)
    return PlanBookResult(
        file=WrittenFile.at(output),
        plans=[entry_result(entry) for entry in book.entries],
        interrupted=missing,
    )


def _print(book: "PlanBook", output: Path, missing: list[str], *, futile_search: bool) -> None:
    from headrace.collectives.cli.entries import entry_tables

    console = terminal()
    for table in entry_tables(entry for entry in book.entries if entry.root == 0):
        console.print(table)  # the other roots' entries are much the same
    if futile_search:
        console.print(
            "Search gains nothing over templates under the executor's model: leave out --search.",
            soft_wrap=True,
        )
    console.print(f"Wrote [bold]{text_of(output)}[/]: {len(book.entries)} plans.", soft_wrap=True)
    if missing:
        console.print(
            f"Interrupted: without plans, which leaves {', '.join(missing)} to templates.",
            soft_wrap=True,
        )
