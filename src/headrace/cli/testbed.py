"""``headrace testbed``: an emulated cluster on this machine, from up to down."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.console import terminal
from headrace.cli.ending import unwind_on_sigterm
from headrace.cli.options import Former, Order, Seed, flag, output_option, time_option
from headrace.cli.progress import Report
from headrace.units import mbit, parse_time

if TYPE_CHECKING:
    from headrace.testbed import Testbed, TestbedSpec, state

app = typer.Typer(no_args_is_help=True)

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")

File = Annotated[Path, typer.Argument(help="TOML file: racks, hosts, rates.", metavar="FILE")]
Fallback = Annotated[
    bool,
    flag("--fallback", "Use loopback, with pacing in headrace's own transport."),
]
Which = Annotated[
    str | None,
    typer.Option("--name", help="Its name or run id; not needed when one testbed is up."),
    Former("--testbed"),
]


@contextmanager
def testbed_for(spec: "TestbedSpec", activity: str, report: Report) -> Generator["Testbed"]:
    """Bring a testbed up for a command's activity; a note names a fallback to loopback."""
    from headrace.testbed import Testbed

    report("building the testbed", 0.0)
    with Testbed.up(spec) as up:
        if up.fallback_reason:
            terminal(stderr=True).print(
                f"{activity} on loopback, paced by the transport: {up.fallback_reason}.",
                soft_wrap=True,
            )
        yield up


@app.command("up")
def up_command(file: File, fallback: Fallback = False) -> None:
    """Build the testbed; it stays until 'headrace testbed down'."""
    from headrace.testbed import Testbed, TestbedSpec

    testbed = Testbed.up(TestbedSpec.load(file), fallback=fallback or None, detached=True)
    console = terminal()
    _print_fallback(testbed, console)
    console.print(_table(testbed.record))
    first = testbed.hosts[0].name
    console.print(
        f"Up as [bold]{testbed.run}[/]. Next: 'headrace testbed exec {first} -- COMMAND', "
        "then 'headrace testbed down'.",
        soft_wrap=True,
    )


@app.command("exec")
def exec_command(
    host: Annotated[str, typer.Argument(help="Name of the host.")],
    command: Annotated[list[str], typer.Argument(help="The command, after '--'.")],
    testbed: Which = None,
) -> None:
    """Run a command on a host, with the variables that torchrun, Gloo and headrace need."""
    from headrace.testbed import Testbed

    Testbed.attach(testbed).replace_process(host, command)


@app.command("set-rate")
def set_rate_command(
    target: Annotated[str, typer.Argument(help="A host, or a rack for its uplink.")],
    rate: Annotated[str, typer.Argument(help="Such as 50mbit, or bytes a second.")],
    testbed: Which = None,
) -> None:
    """Change the rate of a host, or of a rack's uplink, while traffic flows."""
    from headrace.testbed import Testbed
    from headrace.testbed.rates import format_rate, parse_rate

    Testbed.attach(testbed).set_rate(target, rate)
    terminal().print(f"{target}: {format_rate(parse_rate(rate))}")


@app.command("status")
def status_command() -> None:
    """List every testbed on this machine, and whether its owner still lives."""
    from headrace.testbed import state

    records = list(state.records())
    console = terminal()
    for record in records:
        console.print(_table(record))
    if not records:
        console.print("No testbed is up.")
    if any(record.crashed for record in records):
        console.print("'headrace testbed down --crashed' removes those whose owner is gone.")


@app.command("down")
def down_command(
    testbed: Annotated[str | None, typer.Argument(help="Its name or run id.")] = None,
    every: Annotated[
        bool, flag("--all-testbeds", "All testbeds, of any owner."), Former("--all")
    ] = False,
    crashed: Annotated[bool, flag("--crashed", "Only those whose owner is gone.")] = False,
) -> None:
    """End what runs in a testbed and remove it."""
    from headrace.testbed import state, teardown

    removed = state.remove_crashed() if every or crashed else []
    if not crashed:
        for record in list(state.records()) if every else [state.find(testbed)]:
            teardown.remove(record.directory)
            removed.append(record.run)
    terminal().print(f"Removed {', '.join(removed) or 'nothing: there is none'}.")


@app.command("run")
def run_command(
    file: File,
    command: Annotated[list[str], typer.Argument(help="The command, after '--'.")],
    order: Order = "rack",
    seed: Seed = 0,
    fallback: Fallback = False,
    time_limit: Annotated[
        str | None,
        time_option("Longest time; then the job is ended"),
        Former("--timeout", unit="s"),
    ] = None,
) -> None:
    """Build the testbed, run a command as one rank per host, and take it down.

    Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, so that a script
    calling init_process_group runs as it is. The exit code is the first failing rank's.
    """
    from headrace.testbed import Testbed, TestbedSpec, run_ranks

    timeout_s = None if time_limit is None else parse_time(time_limit, "--time-limit")
    spec = TestbedSpec.load(file)
    ranks = spec.order(order, seed=seed)
    console = terminal(soft_wrap=True, highlight=False)
    unwind_on_sigterm()
    with Testbed.up(spec, fallback=fallback or None) as testbed:
        _print_fallback(testbed, console)
        names = [testbed.hosts[index].name for index in ranks]
        console.print(f"[dim]ranks: {', '.join(f'{r} on {n}' for r, n in enumerate(names))}[/]")

        def show(rank: int, line: str) -> None:
            colour = _COLOURS[rank % len(_COLOURS)]
            console.print(f"[{colour}]{rank} {names[rank]} |[/] {escape(line)}")

        codes = run_ranks(testbed, command, ranks, on_line=show, timeout_s=timeout_s)
    failed = {rank: code for rank, code in enumerate(codes) if code}
    for rank, code in failed.items():
        what = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        console.print(f"[dim]rank {rank} on {names[rank]}: {what}[/]")
    if failed:
        # ranks that were ended because another failed show a signal: report the cause
        cause = next((code for code in failed.values() if code > 0), None)
        raise typer.Exit(cause or 128 - next(iter(failed.values())))


@app.command("topology")
def topology_command(
    file: File,
    order: Order = "rack",
    seed: Seed = 0,
    output: Annotated[Path | None, output_option("File to write: the topology.")] = None,
) -> None:
    """Print the true topology of a testbed: hosts, and the payload rate of every pair."""
    from headrace.testbed import TestbedSpec

    spec = TestbedSpec.load(file)
    truth = spec.topology(order, seed=seed)
    if output is not None:
        truth.save(output, {"made_from": str(file), "order": order, "seed": seed})
    names = [f"{rank} {truth.hosts[host]}" for rank, host in enumerate(truth.rank_host)]
    table = Table(
        "from \\ to",
        *names,
        title=f"payload, Mbit/s ({spec.payload_share:z.1%} of the links' rates)",
    )
    for src, name in enumerate(names):
        betas = [
            truth.links[truth.link_index[src, dst]].beta_us_per_mb if src != dst else None
            for dst in range(truth.ranks)
        ]
        table.add_row(name, *("-" if beta is None else f"{mbit(beta):.1f}" for beta in betas))
    terminal().print(table)


def _table(record: "state.Record") -> Table:
    from headrace.testbed import Testbed
    from headrace.testbed.rates import format_rate

    if record.owner is None:
        owner, alive = "-", "until down"
    else:
        owner, alive = str(record.owner[0]), "crashed" if record.crashed else "yes"
    # one line a host in 80 columns; what is the same for all hosts stands above
    table = Table(
        title=f"{record.run} {record.spec.name} ({record.mode})  owner: {owner}  alive: {alive}",
        title_justify="left",
    )
    for heading in ("host", "rack", "address", "rate", "rack's uplink"):
        table.add_column(heading, no_wrap=True)
    many = len(record.spec.racks) > 1
    for host in Testbed(record).hosts:
        rack = record.spec.racks[host.rack]
        uplink = format_rate(rack.bytes_per_s) if many else "-"
        table.add_row(host.name, rack.name, host.address, format_rate(host.bytes_per_s), uplink)
    return table


def _print_fallback(testbed: "Testbed", console: Console) -> None:
    if testbed.is_fallback:
        console.print(
            f"[yellow]On loopback ({testbed.fallback_reason}):[/] only headrace's own transport "
            "keeps to the rates; Gloo, MPI and others run unpaced and cannot be compared.",
            soft_wrap=True,
        )
