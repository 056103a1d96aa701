"""``headrace testbed``: an emulated cluster on this machine, from up to down."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.answers import WrittenFile
from headrace.cli.console import tables_hidden, terminal
from headrace.cli.ending import unwound_by_signals
from headrace.cli.former import Former
from headrace.cli.options import Order, Seed, flag, output_option, time_option
from headrace.cli.progress import Report
from headrace.errors import InputError, TestbedError
from headrace.launch.process import signal_name
from headrace.units import mbit, parse_time

if TYPE_CHECKING:
    from headrace.testbed import Testbed, TestbedSpec, state

app = typer.Typer(no_args_is_help=True)

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_ENDED = {-signal.SIGTERM, -signal.SIGKILL}
"""Exit codes of processes that `run_ranks` ended."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """A host of a testbed; rates in bytes/s."""

    name: str
    rack: str
    address: str
    bytes_per_s: float
    uplink_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedResult:
    """A testbed that is up; alive: until it is taken down, or its owner lives."""

    run: str
    name: str
    mode: str
    owner: int | None
    crashed: bool
    hosts: list[HostResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateResult:
    """The rate of a host, or of a rack's uplink."""

    target: str
    bytes_per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedsResult:
    """The testbeds of this machine."""

    testbeds: list[TestbedResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedResult:
    """Run ids of the testbeds that were removed."""

    removed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command on a host, which had its exit code."""

    host: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """A rank's host and exit code; negative: the signal that ended it."""

    host: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksResult:
    """A job's ranks; its exit code is the first failing rank's."""

    ranks: list[RankResult]
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadResult:
    """Payload rate of a pair of ranks, in bytes/s."""

    src: int
    dst: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueTopologyResult:
    """The true topology: hosts of the ranks, and every pair."""

    file: WrittenFile | None
    hosts: list[str]
    pairs: list[PayloadResult]


@app.command("up")
def up_command(file: File, fallback: Fallback = False) -> TestbedResult:
    """Build the testbed; it stays until 'headrace testbed down'.

    Example: headrace testbed up testbed.toml
    """
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
    return _testbed_result(testbed.record)


@app.command("exec")
def exec_command(
    host: Annotated[str, typer.Argument(help="Name of the host.")],
    command: Annotated[list[str], typer.Argument(help="The command, after '--'.")],
    testbed: Which = None,
) -> CommandResult:
    """Run a command on a host, with the variables that torchrun, Gloo and headrace need.

    Example: headrace testbed exec a -- hostname
    """
    from headrace.testbed import Testbed

    attached = Testbed.attach(testbed)
    if not tables_hidden.get():
        attached.replace_process(host, command)
    try:
        # in this session: Ctrl-C is for the command
        exit_code = attached.popen(host, command, start_new_session=False).wait()
    except OSError as error:
        raise TestbedError(f"'{command[0]}' cannot be run: {error.strerror}") from error
    return CommandResult(host=host, exit_code=exit_code if exit_code >= 0 else 128 - exit_code)


@app.command("set-rate")
def set_rate_command(
    target: Annotated[str, typer.Argument(help="A host, or a rack for its uplink.")],
    rate: Annotated[str, typer.Argument(help="Such as 50mbit, or bytes a second.")],
    testbed: Which = None,
) -> RateResult:
    """Change the rate of a host, or of a rack's uplink, while traffic flows.

    Example: headrace testbed set-rate a 50Mbit/s
    """
    from headrace.testbed import Testbed
    from headrace.testbed.rates import format_rate, parse_rate

    Testbed.attach(testbed).set_rate(target, rate)
    terminal().print(f"{target}: {format_rate(parse_rate(rate))}")
    return RateResult(target=target, bytes_per_s=parse_rate(rate))


@app.command("status")
def status_command() -> TestbedsResult:
    """List every testbed on this machine, and whether its owner still lives.

    Example: headrace testbed status
    """
    from headrace.testbed import state

    records = list(state.records())
    console = terminal()
    for record in records:
        console.print(_table(record))
    if not records:
        console.print("No testbed is up.")
    if any(record.crashed for record in records):
        console.print("'headrace testbed down --crashed' removes those whose owner is gone.")
    return TestbedsResult(testbeds=[_testbed_result(record) for record in records])


@app.command("down")
def down_command(
    testbed: Annotated[str | None, typer.Argument(help="Its name or run id.")] = None,
    every: Annotated[
        bool, flag("--all-testbeds", "All testbeds, of any owner."), Former("--all")
    ] = False,
    crashed: Annotated[bool, flag("--crashed", "Only those whose owner is gone.")] = False,
) -> RemovedResult:
    """End what runs in a testbed and remove it.

    Example: headrace testbed down --all-testbeds
    """
    from headrace.testbed import state, teardown

    if (testbed is not None) + every + crashed > 1:
        raise InputError("more than one of a name, --all-testbeds and --crashed, needs one")
    removed = state.remove_crashed() if every or crashed else []
    if not crashed:
        for record in list(state.records()) if every else [state.find(testbed)]:
            teardown.remove(record.directory)
            removed.append(record.run)
    terminal().print(f"Removed {', '.join(removed) or 'nothing: there is none'}.")
    return RemovedResult(removed=removed)


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
) -> RanksResult:
    """Build the testbed, run a command as one rank per host, and take it down.

    Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, so that a script
    calling init_process_group runs as it is. The exit code is the first failing rank's, and
    not 0 past the time limit.

    Example: headrace testbed run testbed.toml --time-limit 5min -- python train.py
    """
    from headrace.testbed import Testbed, TestbedSpec, run_ranks

    timeout_s = None if time_limit is None else parse_time(time_limit, "--time-limit")
    spec = TestbedSpec.load(file)
    ranks = spec.order(order, seed=seed)
    console = terminal(soft_wrap=True, highlight=False, quiet=False)  # the job's output
    with unwound_by_signals(), Testbed.up(spec, fallback=fallback or None) as testbed:
        _print_fallback(testbed, console)
        names = [testbed.hosts[index].name for index in ranks]
        console.print(f"[dim]ranks: {', '.join(f'{r} on {n}' for r, n in enumerate(names))}[/]")

        def show(rank: int, line: str) -> None:
            colour = _COLOURS[rank % len(_COLOURS)]
            console.print(f"[{colour}]{rank} {names[rank]} |[/] {escape(line)}")

        began_s = time.monotonic()
        codes = run_ranks(testbed, command, ranks, on_line=show, timeout_s=timeout_s)
        took_s = time.monotonic() - began_s
    failed = {rank: code for rank, code in enumerate(codes) if code}
    for rank, code in failed.items():
        what = f"ended by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        console.print(f"[dim]rank {rank} on {names[rank]}: {what}[/]")
    is_late = timeout_s is not None and took_s >= timeout_s
    if is_late and _ENDED.issuperset(failed.values()):
        console.print(f"[dim]the job was ended: its time limit of {time_limit} has passed[/]")
    exit_code = 128 + signal.SIGTERM if is_late else 0  # whatever ranks return that it ended
    if failed:
        # ranks that were ended because another failed show a signal: report the cause
        cause = next((code for code in failed.values() if code > 0), None)
        exit_code = cause or 128 - next(iter(failed.values()))
    return RanksResult(
        ranks=[RankResult(host=n, exit_code=c) for n, c in zip(names, codes, strict=True)],
        exit_code=exit_code,
    )


@app.command("topology")
def topology_command(
    file: File,
    order: Order = "rack",
    seed: Seed = 0,
    output: Annotated[Path | None, output_option("File to write: the topology.")] = None,
) -> TrueTopologyResult:
    """Print the true topology of a testbed: hosts, and the payload rate of every pair.

    Example: headrace testbed topology testbed.toml
    """
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
    return TrueTopologyResult(
        file=None if output is None else WrittenFile.at(output),
        hosts=[truth.hosts[host] for host in truth.rank_host],
        pairs=[
            PayloadResult(src=link.src, dst=link.dst, bytes_per_s=1e12 / link.beta_us_per_mb)
            for link in truth.links
        ],
    )


def _testbed_result(record: "state.Record") -> TestbedResult:
    from headrace.testbed import Testbed

    racks = record.spec.racks
    return TestbedResult(
        run=record.run,
        name=record.spec.name,
        mode=record.mode,
        owner=None if record.owner is None else record.owner[0],
        crashed=record.crashed,
        hosts=[
            HostResult(
                name=host.name,
                rack=racks[host.rack].name,
                address=host.address,
                bytes_per_s=host.bytes_per_s,
                uplink_bytes_per_s=racks[host.rack].bytes_per_s,
            )
            for host in Testbed(record).hosts
        ],
    )


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
