"""Physical affinity: PAIA (PLink 5.5) of probes and of embeddings; a thousand hosts.

Testbed shapes: bandwidth of all pairs with noise, and the racks found in it. Tables: latency of 64
and 512 hosts in trees of up to six levels, generated or recorded.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.harness import Report
from benchmarks.instruments.affinity import physical_affinity
from benchmarks.instruments.network_table import RECORDED, NetworkTable, load_table
from benchmarks.instruments.simulated_network import (
    NOISELESS,
    nested_positions,
    rack_positions,
    simulate_network,
)
from benchmarks.network.thousand import plan_network
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.racks.linkage import group_hosts

SHAPES = {"2x4": (4, 4), "4x2": (2, 2, 2, 2), "3x3": (3, 3, 3), "5-2-1": (5, 2, 1)}
TABLES = {
    # regions, datacenters, clusters, rows, racks
    "64-of-the-paper": (64, (1, 2, 7, 15, 61)),  # its 5.5, first case: 2, 7, 15 and 61
    "64-one-datacenter": (64, (1, 1, 2, 6, 24)),
    "64-rows-and-racks": (64, (1, 1, 1, 4, 16)),
    "64-racks-only": (64, (1, 1, 1, 1, 8)),
    "64-six-levels": (64, (2, 4, 8, 12, 20)),
    "512-four-levels": (512, (1, 1, 2, 8, 64)),
    "512-six-levels": (512, (2, 4, 12, 40, 128)),
}
NOISE = 0.3
RATIOS = (4.0, 2.0)
"""Racks have to be found under noise where a pair across has a quarter of the bandwidth of one
inside; at a half, noise of 0.3 sometimes hides them from any method."""
WEAK = 0.9  # raw PAIA below which embedding has to gain
SEEDS, LARGE_SEEDS = 5, 2


def bars() -> dict[str, str]:
    """Return the bars: accuracy on testbed shapes, gain on tables, time for a thousand hosts."""
    return {
        **{f"paia-noise-{name}": ">=0.95" for name in SHAPES},
        **{f"racks-noise-{name}": ">=1" for name in SHAPES},
        "embedding-gain-points": ">=5",
        "plan-1024-hosts-s": "<=120",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Add all rows and give the bars."""
    shapes = list(shape_rows(3 if quick else 20))
    for row in shapes:
        report.row("racks from noisy bandwidth", **row)
    for name in SHAPES:
        mine = [row for row in shapes if row["shape"] == name]
        report.bar(f"paia-noise-{name}", min(row["paia_embedded"] for row in mine))
        clear = [row["racks_exact"] for row in mine if row["host_over_uplink"] == RATIOS[0]]
        report.bar(f"racks-noise-{name}", clear[0])
    gains: list[float] = []
    for row in table_rows(quick=quick):
        report.row("embedding of tables", **row)
        if row["paia_raw"] < WEAK:
            gains.append(row["gain_points"])
    report.bar("embedding-gain-points", min(gains))
    row = thousand_row()
    report.row("from measurements to a proven plan", **row)
    report.bar("plan-1024-hosts-s", row["total_s"])


def shape_rows(seeds: int = 20) -> Iterator[dict[str, Any]]:
    """Yield rows for each testbed shape: racks as a share of seeds, PAIA as the mean over them.

    `host_over_uplink` is the bandwidth of a pair inside a rack over a pair across, both alone.
    """
    for name, sizes in SHAPES.items():
        for ratio in RATIOS:
            raw: list[float] = []
            embedded: list[float] = []
            exact: list[bool] = []
            for seed in range(seeds):
                positions = rack_positions(sizes, seed=seed)
                table = simulate_network(
                    positions,
                    seed=seed,
                    disturbance=replace(NOISELESS, noise=NOISE),
                    oversubscription=(1, 1, 1, 1, ratio),
                )
                before, after = accuracy(table, latency=False)
                raw.append(before)
                embedded.append(after)
                exact.append(racks_found(table))
            yield {
                "shape": name,
                "host_over_uplink": ratio,
                "seeds": seeds,
                "paia_raw": mean(raw),
                "paia_embedded": mean(embedded),
                "worst_embedded": min(embedded),
                "racks_exact": mean(exact),
            }


def table_rows(*, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a row for each latency table, generated or recorded: PAIA, the mean over seeds."""
    for name, (hosts, units) in TABLES.items():
        large = hosts > 64
        seeds = 1 if quick else LARGE_SEEDS if large else SEEDS
        if quick and large:
            continue
        tables = [
            simulate_network(nested_positions(hosts, units, seed=seed), seed=seed)
            for seed in range(seeds)
        ]
        yield _table_row(name, tables, tables[0].latency_us is not None)
    for path in sorted(RECORDED.glob("*.json")):
        table = load_table(path)
        row = _table_row(path.stem, [table], table.latency_us is not None)
        if table.bandwidth is not None:
            row["racks"] = "exact" if racks_found(table) else "WRONG"
        yield row


def _table_row(name: str, tables: list[NetworkTable], latency: bool) -> dict[str, Any]:
    began = time.monotonic()
    found = [accuracy(table, latency=latency) for table in tables]
    raw, embedded = (mean(column) for column in zip(*found, strict=True))
    return {
        "table": name,
        "hosts": tables[0].hosts,
        "levels": levels_of(tables[0]),
        "from": "latency" if latency else "bandwidth",
        "seeds": len(tables),
        "paia_raw": raw,
        "paia_embedded": embedded,
        "gain_points": 100 * (embedded - raw),
        "least_gain": 100 * min(after - before for before, after in found),
        "s_each": (time.monotonic() - began) / len(tables),
    }


def thousand_row() -> dict[str, Any]:
    """Return the row of 1,024 hosts: seconds of every stage, and the result."""
    stages = plan_network()
    seconds = {f"{stage}_s": value for stage, value in stages.seconds.items()}
    return {
        "hosts": stages.hosts,
        "total_s": stages.total_s,
        "processor_s": stages.processor_s,
        **seconds,
        **stages.figures,
    }


def accuracy(table: NetworkTable, *, latency: bool) -> tuple[float, float]:
    """Return PAIA of distances by latency, or else bandwidth, and of their embedding.

    Raw distances are the mean of both directions already.
    """
    distances, known = table.distances(latency=latency, bandwidth=not latency)
    embedded = embed(distances, known=known).distances()
    raw = np.where(known, distances, np.nan)
    return (
        physical_affinity(raw, table.positions).accuracy,
        physical_affinity(embedded, table.positions).accuracy,
    )


def racks_found(table: NetworkTable) -> bool:
    """Return whether grouping by bandwidth gives the racks, all of them and exactly."""
    assert table.bandwidth is not None
    racks: dict[Any, list[int]] = {}
    for host, position in enumerate(table.positions):
        racks.setdefault(position[:5], []).append(host)
    return set(group_hosts(table.bandwidth)) == {tuple(hosts) for hosts in racks.values()}


def levels_of(table: NetworkTable) -> int:
    """Return the number of levels that distinguish hosts: those that divide a unit."""
    sizes = [len({position[:k] for position in table.positions}) for k in range(7)]
    return sum(after > before for before, after in pairwise(sizes))


def main() -> int:
    """Print every row of `measure`, without the harness."""
    for rows in (shape_rows, table_rows, lambda: [thousand_row()]):
        for row in rows():
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  ".join(shown), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
