"""Tables of a network: measurements between pairs of hosts, and the hosts' positions."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.instruments.affinity import Position
from headrace import fields
from headrace.collectives.measure.embed.distances import pair_distances
from headrace.errors import InputError
from headrace.files import read_text
from headrace.topology.profile import Profile

RECORDED = Path(__file__).parent / "recorded"
"""Folder of the tables that `record` keeps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkTable:
    """Measurements of all pairs of hosts, from row to column.

    Attributes
    ----------
    name : of the network.
    positions : of every host, from the outermost level in (`affinity.LEVELS`).
    latency_us, bandwidth : (n, n) float64, us and bytes/s; nan where nothing was measured, on the
        diagonal too. None if not measured at all.
    """

    name: str
    positions: tuple[Position, ...]
    latency_us: np.ndarray | None = None
    bandwidth: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = len(self.positions)
        for name in ("latency_us", "bandwidth"):
            table = getattr(self, name)
            if table is not None and table.shape != (n, n):
                raise InputError(
                    f"{self.name}: {name} has shape {table.shape}, needs {(n, n)} for {n} positions"
                )

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.positions)

    def distances(
        self, *, latency: bool = True, bandwidth: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return distances by latency, bandwidth or both, and which are known: `pair_distances`.

        Both, each over its median, weigh alike; a pair that only one of them covers has that one.

        Raises
        ------
        InputError : if the table lacks the requested measurements.
        """
        parts = [
            pair_distances(**{name: values}, known=~np.isnan(values))
            for name, values in self._measured(latency=latency, bandwidth=bandwidth).items()
        ]
        if not parts:
            raise InputError(f"{self.name}: neither latency_us nor bandwidth is in the table")
        if len(parts) == 1:
            return parts[0]
        scaled = [0.5 * values / (np.median(values[known]) or 1.0) for values, known in parts]
        total = sum(np.where(known, v, 0.0) for v, (_, known) in zip(scaled, parts, strict=True))
        weights = sum(np.where(known, 0.5, 0.0) for _, known in parts)
        found = np.divide(total, weights, out=np.zeros_like(total), where=weights > 0)
        return found, parts[0][1] | parts[1][1]

    def _measured(self, *, latency: bool, bandwidth: bool) -> dict[str, np.ndarray]:
        wanted = {"latency_us": latency, "bandwidth": bandwidth}
        found = {name: getattr(self, name) for name, wants in wanted.items() if wants}
        return {name: values for name, values in found.items() if values is not None}


def table_of_profile(
    profile: Profile, positions: Sequence[Position], name: str | None = None
) -> NetworkTable:
    """Return latency and bandwidth between hosts, from a profile's round-robin.

    Latency is half of the least round trip. Of several ranks of a host one was probed.

    Parameters
    ----------
    positions : of the hosts of ``profile.topology``, in their order.
    """
    hosts, pairs = len(profile.topology.hosts), profile.pairs
    home = np.array(profile.topology.rank_host)
    src, dst = home[pairs["src"]], home[pairs["dst"]]
    latency, bandwidth = (np.full((hosts, hosts), np.nan) for _ in range(2))
    latency[src, dst] = pairs["min_rtt_us"] / 2
    bandwidth[src, dst] = pairs["bytes_per_s"]
    return NetworkTable(
        name=name or profile.topology.name,
        positions=tuple(positions),
        latency_us=latency,
        bandwidth=bandwidth,
    )


def load_table(path: str | Path) -> NetworkTable:
    """Read a recorded table from JSON or CSV (by the file's suffix).

    JSON: an object with `name`, `positions` (a list for each host) and `latency_us`, `bandwidth`
    or both (lists of rows); null is a pair that was not measured. CSV: latency alone, a line for
    each host: its position, slashes between the levels, then a column for each host, us; an empty
    one is a pair that was not measured.

    Raises
    ------
    InputError : naming the file, the field and the row.
    """
    path = Path(path)
    text = read_text(path)
    match path.suffix:
        case ".json":
            return _from_json(text, path)
        case ".csv":
            return _from_csv(text, path)
        case other:
            raise InputError(f"{path}: ends in {other!r}, needs .json or .csv")


def save_table(table: NetworkTable, path: str | Path) -> None:
    """Write a table as JSON, four digits a number: `load_table` reads it."""
    head: dict[str, Any] = {"name": table.name, "positions": [list(p) for p in table.positions]}
    for name in ("latency_us", "bandwidth"):
        values = getattr(table, name)
        if values is not None:
            head[name] = [
                [float(f"{x:.4g}") if np.isfinite(x) else None for x in row]
                for row in values.tolist()
            ]
    rows = json.dumps(head).replace("], [", "],\n[")
    Path(path).write_text(rows + "\n")


def _from_json(text: str, path: Path) -> NetworkTable:
    try:
        head = fields.table(json.loads(text))
        positions = tuple(_position(row) for row in fields.items(head["positions"]))
        tables = {
            name: _numbers(fields.items(head[name]), len(positions), f"{path}: {name}")
            for name in ("latency_us", "bandwidth")
            if name in head
        }
        name = fields.text(head.get("name", path.stem))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: needs an object with 'positions' and 'latency_us' or 'bandwidth': {error!r}"
        ) from error
    return _checked(NetworkTable(name=name, positions=positions, **tables), path)


def _from_csv(text: str, path: Path) -> NetworkTable:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    positions = tuple(tuple(row[0].split("/")) for row in rows)
    latency = _numbers([row[1:] for row in rows], len(rows), f"{path}: line")
    return _checked(NetworkTable(name=path.stem, positions=positions, latency_us=latency), path)


def _checked(table: NetworkTable, path: Path) -> NetworkTable:
    if not table.hosts or (table.latency_us is None and table.bandwidth is None):
        raise InputError(f"{path}: has no measurements, needs latency_us or bandwidth")
    return table


def _position(found: Any) -> Position:
    entries = fields.items(found)
    if not all(isinstance(entry, int | str) for entry in entries):
        raise TypeError(f"position {entries} has other entries than numbers and texts")
    return tuple(entries)


def _numbers(rows: Sequence[Any], hosts: int, where: str) -> np.ndarray:
    made = np.full((hosts, hosts), np.nan)
    if len(rows) != hosts:
        raise InputError(f"{where} has {len(rows)} rows, needs {hosts}, one for each host")
    for i, row in enumerate(rows):
        cells = list(row)
        if len(cells) != hosts:
            raise InputError(f"{where}[{i}] has {len(cells)} numbers, needs {hosts}")
        for j, cell in enumerate(cells):
            if i == j or cell is None or cell == "":
                continue
            try:
                made[i, j] = float(cell)
            except (TypeError, ValueError):
                made[i, j] = -1.0
            if not (np.isfinite(made[i, j]) and made[i, j] > 0):
                raise InputError(f"{where}[{i}][{j}] is {cell!r}, needs a finite number above 0")
    return made
