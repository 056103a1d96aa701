"""Report of the demo on a terminal: what was found, planned and measured, beside the truth."""

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook
from headrace.demo.remarks import off_remarks, order_remark
from headrace.demo.scenario import Comparison, RankHosts
from headrace.demo.training import TrainingResult
from headrace.testbed import Testbed, pace_rate
from headrace.testbed.loopback import pace_table
from headrace.testbed.rates import format_rate
from headrace.topology import Topology
from headrace.units import mbit, ms, size

if TYPE_CHECKING:
    from headrace.collectives.measure import Profile

_NAMES = {"gloo": "Gloo", "headrace": "headrace"}
_PLAIN_STEPS = 4  # a line for every so many steps where there is no terminal to redraw
_MATRIX_RANKS = 6  # with more, a row for every rank no longer fits
_BAR_CELLS = 48


class Show:
    """Observer of `run_demo` that prints."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def close(self) -> None:
        """Take the progress bar away, whatever happened."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def built(self, testbed: Testbed, placement: RankHosts) -> None:
        spec = testbed.spec
        self._head(1, "A cluster with an uneven network")
        how = "on loopback" if testbed.is_fallback else "network namespaces, shaped by the kernel"
        self._print(f"{len(spec.racks)} racks, {len(spec.hosts)} hosts ({how}):")
        for index, rack in enumerate(spec.racks):
            hosts = [host for host in spec.hosts if host.rack == index]
            rates = " ".join(sorted({format_rate(host.bytes_per_s) for host in hosts}))
            names = ", ".join(host.name for host in hosts)
            self._print(
                f"  {rack.name}: {names} at {rates} each, "
                f"behind an uplink of {format_rate(rack.bytes_per_s)}"
            )
        drawn = f", drawn with --seed {placement.seed}" if placement.seed is not None else ""
        self._print(f"one rank a host{drawn}:")
        for rank, (host, rack) in enumerate(zip(placement.hosts, placement.racks, strict=True)):
            self._print(f"  rank {rank} on {host} in {rack}")
        if testbed.is_fallback:
            self._print(
                f"[yellow]No shaped links here ({escape(testbed.fallback_reason or '')}): only "
                "headrace's own transport keeps to the rates. Gloo runs unpaced, so its times "
                "say nothing about this network and are not compared.[/]"
            )

    def progress(self, what: str, fraction: float) -> None:
        if not self._console.is_terminal:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("  {task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.add_task(what, total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=what, completed=fraction)

    def measured(self, profile: "Profile", testbed: Testbed, placement: RankHosts) -> None:
        self.close()
        self._head(2, f"Measured in {profile.took_s:.1f} s")
        measured, truth = profile.topology, testbed.spec.topology(placement.order)
        self._console.print(_racks(profile, placement))
        if truth.ranks <= _MATRIX_RANKS:
            share = testbed.spec.payload_share
            self._console.print(_rates(measured, _true_mbit(testbed, placement), placement, share))
        if testbed.is_fallback:
            self._print(
                "paced without uplinks: every host of a rack has a fixed part of its rack's"
            )
        else:
            for line in _shared(measured, truth):
                self._print(line)
        alphas = [link.alpha_us for link in profile.topology.links]
        self._print(
            f"alpha {min(alphas):.0f} to {max(alphas):.0f} us, median {median(alphas):.0f} "
            "(the machine's own: latency is not shaped)"
        )

    def planned(self, book: PlanBook, took_s: float) -> None:
        self.close()
        self._head(
            3,
            f"Planned in {took_s:.1f} s: {len(book.programs)} programs, every one proven correct",
        )
        self._print(
            f"they make {len(book.entries)} plans: one program can be best at several sizes"
        )
        table = _table("allreduce of", "best plan", "scored at", "predicted", "bound", "gap")
        for entry in book.entries:
            if entry.collective is not Collective.ALLREDUCE:
                continue
            plan = entry.plan
            upper = (
                "and more"
                if entry.to_bytes is None
                else f"to {size(entry.to_bytes, plan.total_bytes)}"
            )
            table.add_row(
                f"{size(entry.from_bytes, plan.total_bytes)} {upper}",
                plan.generator,
                size(plan.total_bytes),
                ms(plan.predicted_us),
                ms(plan.bound.total_us),
                f"{plan.gap:z.0%}",
            )
        self._console.print(table)
        self._head(4, "Training: the same script, and one word that differs")

    def step(self, backend: str, done: int, total: int, loss: float) -> None:
        text = f"{backend:<8} step {done} of {total}, loss {loss:.3f}"
        self.progress(text, done / total)
        if not self._console.is_terminal and (done % _PLAIN_STEPS == 0 or done == total):
            self._print(f"  {text}")

    def trained(self, result: TrainingResult, took_s: float) -> None:
        self.close()
        self._print(
            f'init_process_group("{result.backend}"): {len(result.steps_us)} steps measured, '
            f"{ms(result.step_us)} each; {took_s:.0f} s with starting up"
        )
        if result.backend == "headrace":
            buckets = " + ".join(map(size, result.bucket_bytes))
            self._print(f"gradients: {size(sum(result.bucket_bytes))} = {buckets} in buckets")

    def compared(self, comparison: Comparison, *, paced: bool) -> None:
        self._head(5, "Compared (with real compute)")
        self._console.print(_runs(comparison, paced=paced))
        if paced:
            for bar in _bars(comparison):
                self._console.print(bar)
            self._print("[dim]  ░ computing  █ network  · the least that any plan leaves[/]")
            self._print(
                "[dim]  computing: the same steps on a copy without DDP, on all ranks at once[/]"
            )
        self._console.print(_allreduces(comparison))
        if paced:
            self._print(order_remark(comparison))
            for remark in off_remarks(comparison):
                self._print(f"[yellow]{remark}[/]")
        if comparison.load.warning:
            self._print(f"[yellow]{comparison.load.warning}[/]")
        self._print("")
        self._console.print(_closing(comparison, paced=paced), soft_wrap=True)

    def _head(self, number: int, text: str) -> None:
        self._console.print(f"\n[bold]{number}  {text}[/]")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _racks(profile: "Profile", placement: RankHosts) -> Table:
    truth: dict[str, set[str]] = {}
    for host, rack in zip(placement.hosts, placement.racks, strict=True):
        truth.setdefault(rack, set()).add(host)
    groups = [set(group) for group in profile.host_groups]
    table = _table("rack", "its hosts", "group found", "")
    for rack, hosts in sorted(truth.items()):
        best = max(groups, key=lambda group: len(group & hosts))
        same = "same" if best == hosts else "[red]differs[/]"
        table.add_row(rack, ", ".join(sorted(hosts)), ", ".join(sorted(best)), same)
    return table


def _true_mbit(testbed: Testbed, placement: RankHosts) -> list[list[float]]:
    """Return the payload rate of every pair of ranks, from row to column, in Mbit/s."""
    ranks = range(len(placement.hosts))
    if testbed.is_fallback:
        pace = pace_table(testbed.spec)
        addresses = [testbed.host(name).address for name in placement.hosts]
        return [[pace_rate(pace, addresses[s], addresses[d]) * 8e-6 for d in ranks] for s in ranks]
    truth = testbed.spec.topology(placement.order)
    return [[_mbit(truth, s, d) if s != d else 0.0 for d in ranks] for s in ranks]


def _rates(
    measured: Topology, truth: list[list[float]], placement: RankHosts, share: float
) -> Table:
    table = Table(
        box=None,
        title=f"payload, Mbit/s: measured (true: {share:z.1%} of the link's rate)",
        title_justify="left",
        padding=(0, 2, 0, 0),
    )
    table.add_column("from \\ to", no_wrap=True)
    for rank, host in enumerate(placement.hosts):
        table.add_column(f"{rank} {host}", justify="right", no_wrap=True)
    for src, host in enumerate(placement.hosts):
        cells = [
            "-" if src == dst else f"{_mbit(measured, src, dst):.1f} ({truth[src][dst]:.1f})"
            for dst in range(measured.ranks)
        ]
        table.add_row(f"{src} {host}", *cells)
    return table


def _shared(measured: Topology, truth: Topology) -> Iterator[str]:
    betas = {_pairs(measured, shared.links): shared.beta_us_per_mb for shared in measured.shared}
    told: set[frozenset[tuple[int, int]]] = set()
    for shared in truth.shared:
        pairs = _pairs(truth, shared.links)
        # of two racks, what leaves one enters the other: the same links
        if "-uplink-" not in shared.name or pairs in told:
            continue
        told.add(pairs)
        true = mbit(shared.beta_us_per_mb)
        what = f"{shared.name.replace('-uplink-', ' uplink, ')}"
        if pairs in betas:
            yield f"{what}: {mbit(betas[pairs]):.1f} ({true:.1f}) shared by {len(pairs)} links"
        else:
            yield f"{what}: [red]not found[/] ({true:.1f}), shared by {len(pairs)} links"


def _runs(comparison: Comparison, *, paced: bool) -> Table:
    gloo, ours = comparison.gloo, comparison.headrace
    name = "Gloo" if paced else "Gloo, unpaced"
    table = _table("measured", name, "headrace", "")
    speed_up = f"[bold]{comparison.speed_up:.2f}x[/]" if paced else ""
    rows = (
        (f"step, median of {len(ours.steps_us)}", ms(gloo.step_us), ms(ours.step_us), speed_up),
        ("  computing alone", ms(gloo.compute_us), ms(ours.compute_us), ""),
        ("  the rest: network", ms(_rest(gloo)), ms(_rest(ours)), ""),
        (
            "  share of the step on the network",
            f"{gloo.network_share:z.1%}",
            f"{ours.network_share:z.1%}",
            "",
        ),
        ("allreduce of all gradients alone", ms(gloo.allreduce_us), ms(ours.allreduce_us), ""),
        (
            "loss on held-out images",
            f"{gloo.loss:.6f}",
            f"{ours.loss:.6f}",
            f"differ by {apart:.0e}" if (apart := comparison.loss_difference) else "equal",
        ),
        (
            "accuracy on held-out images",
            f"{gloo.right}/{gloo.images}",
            f"{ours.right}/{ours.images}",
            "equal" if gloo.right == ours.right else f"differ by {abs(gloo.right - ours.right)}",
        ),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _rest(result: TrainingResult) -> float:
    return max(0.0, result.step_us - result.compute_us)


def _bars(comparison: Comparison) -> Iterator[Text]:
    # what nothing can undercut: the uplinks carry the gradients for so long, however it computes
    least = max(comparison.bound_us, comparison.headrace.compute_us)
    longest = max(comparison.gloo.step_us, comparison.headrace.step_us)
    for result in (comparison.gloo, comparison.headrace):
        cells = round(_BAR_CELLS * result.step_us / longest)
        compute = min(cells, round(_BAR_CELLS * result.compute_us / longest))
        colour = "green" if result.backend == "headrace" else "red"
        yield Text.assemble(
            f"  {_NAMES[result.backend]:<9}",
            ("░" * compute, "dim"),
            ("█" * (cells - compute), colour),
            f" {ms(result.step_us)}",
        )
    cells = round(_BAR_CELLS * least / longest)
    yield Text.assemble("  bound    ", ("·" * cells, "dim"), f" {ms(least)}")


def _allreduces(comparison: Comparison) -> Table:
    table = _table("allreduce", "plan", "predicted", "measured", "off", "bound")
    table.title = "headrace's allreduces, one after another"
    rows = [
        (
            size(forecast.total_bytes),
            forecast.generator,
            forecast.predicted_us,
            measured,
            forecast.bound_us,
        )
        for forecast, measured in zip(
            comparison.forecasts, comparison.headrace.allreduces_us, strict=True
        )
    ]
    total = (comparison.predicted_us, comparison.headrace.allreduce_us, comparison.bound_us)
    for what, generator, predicted, measured, bound in (*rows, ("all", "", *total)):
        off = f"{measured / predicted - 1:+z.0%}"
        table.add_row(what, generator, ms(predicted), ms(measured), off, ms(bound))
    return table


def _closing(comparison: Comparison, *, paced: bool) -> str:
    certificate = (
        f"its allreduces took {ms(comparison.headrace.allreduce_us)}, "
        f"{ms(comparison.predicted_us)} were predicted"
    )
    if not paced:
        return (
            "[bold]headrace trained the same network as Gloo;[/] "
            f"{certificate}. To compare speed on shaped links, run the demo as root."
        )
    return (
        f"[bold green]The same script with one word changed trains the same network "
        f"{comparison.speed_up:.2f}x as fast:[/] {certificate}, and the bound for the network "
        f"as measured is {ms(comparison.bound_us)}."
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    numbers = {"predicted", "measured", "bound", "gap", "off", "scored at", *_NAMES.values()}
    for index, column in enumerate(columns):
        right = index and (column in numbers or column.startswith("Gloo"))
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def _pairs(topology: Topology, links: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    return frozenset((topology.links[i].src, topology.links[i].dst) for i in links)


def _mbit(topology: Topology, src: int, dst: int) -> float:
    return mbit(topology.links[topology.link_index[src, dst]].beta_us_per_mb)
