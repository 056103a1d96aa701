"""Sketch files: TACCL's own format and that of the dissertation's appendix B.1."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from headrace import fields
from headrace.collectives.errors import SketchError
from headrace.collectives.plan.generators.taccl.sketch.comments import load_commented
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    Policy,
    RelayMap,
    Sketch,
    Strategy,
    Symmetry,
)
from headrace.files import read_text

_T = TypeVar("_T")
_MAX = 1 << 20  # no count or rank of a sketch is larger
_MOST_ROWS = 256
"""Most switches of a node, and symmetries: each is applied to all links of the topology."""
_SPLIT = (1e-3, 1e6)
"""Range of `beta_split`, by which a bandwidth is divided."""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_POLICIES = {**{policy.value: policy for policy in Policy}, "none": Policy.FREE}
_CONNECTIONS = ("fully-connected", "direct-map")


def load_sketch(path: str | Path) -> Sketch:
    """Read a sketch file.

    Raises
    ------
    SketchError : naming the file and the field, what was found and what is allowed.
    """
    path = Path(path)
    return parse_sketch(read_text(path, SketchError), name=path.stem, source=str(path))


def parse_sketch(text: str, *, name: str = "sketch", source: str = "sketch") -> Sketch:
    """Parse the text of a sketch file (JSON, comments allowed).

    Raises
    ------
    SketchError : naming `source` and the field, what was found and what is allowed.
    """
    top = _Table(load_commented(text, source), source, "")
    top.known(
        {"name", "nnodes", "intranode_sketch", "internode_sketch", "symmetry_offsets",
         "symmetries", "automorphism", "partition", "hyperparameters"}
    )  # fmt: skip
    top.require("intranode_sketch")
    intranode = _intranode(top.table("intranode_sketch"))
    internode = _internode(top.table("internode_sketch")) if "internode_sketch" in top else None
    nodes = top.get("nnodes", _count, 2 if internode else 1)
    if nodes > 1 and internode is None:
        top.fail("internode_sketch", f"is missing, a sketch of {nodes} nodes needs it")
    hyper = top.table("hyperparameters") if "hyperparameters" in top else None
    if hyper:
        hyper.known({"input_chunkup", "input_size", "heuristic"})
    return Sketch(
        name=top.get("name", fields.text, name),
        nodes=nodes,
        intranode=intranode,
        internode=internode if nodes > 1 else None,
        symmetries=_symmetries(top),
        chunkup=hyper.get("input_chunkup", _count, 1) if hyper else 1,
        input_bytes=hyper.get("input_size", _size, None) if hyper else None,
    )


class _Table:
    """JSON object of the file; errors name its path."""

    def __init__(self, value: Any, source: str, path: str) -> None:
        self.source, self.path = source, path
        try:
            self._row: Mapping[str, Any] = fields.table(value)
        except TypeError as error:
            what = f"field '{path}'" if path else "the sketch"
            raise SketchError(f"{source}: {what}: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def _full(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def fail(self, name: str, why: str) -> None:
        raise SketchError(f"{self.source}: field '{self._full(name)}' {why}")

    def known(self, names: set[str]) -> None:
        for name in self._row:
            if name not in names:
                self.fail(name[:40], f"is unknown, needs one of {', '.join(sorted(names))}")

    def require(self, name: str) -> None:
        if name not in self._row:
            self.fail(name, "is missing")

    def table(self, name: str) -> "_Table":
        return _Table(self._row[name], self.source, self._full(name))

    def get(self, name: str, read: Callable[[Any], _T], default: Any) -> _T:
        if name not in self._row:
            return default
        try:
            return read(self._row[name])
        except (TypeError, ValueError) as error:
            if isinstance(error, SketchError):
                raise
            raise SketchError(f"{self.source}: field '{self._full(name)}': {error}") from error


def _intranode(table: _Table) -> Intranode:
    table.known({"strategy", "switches", "switch_hyperedge_strategy"})
    table.require("strategy")
    strategy = table.get("strategy", _one_of({s.value: s for s in Strategy}), None)
    switches = table.get("switches", _few(_ranks), ())
    policies = table.get(
        "switch_hyperedge_strategy", _list(_one_of(_POLICIES)), (Policy.AUTO,) * len(switches)
    )
    if strategy is Strategy.SWITCH and not switches:
        table.fail("switches", "is missing or empty, strategy 'switch' needs the GPUs of each")
    if strategy is not Strategy.SWITCH and switches:
        table.fail("switches", f"is given, strategy '{strategy}' has none: use 'switch'")
    if len(policies) != len(switches):
        table.fail(
            "switch_hyperedge_strategy",
            f"has {len(policies)} entries, needs one for each of {len(switches)} switches",
        )
    return Intranode(strategy=strategy, switches=switches, policies=policies)


def _internode(table: _Table) -> Internode:
    table.known(
        {"strategy", "internode_conn", "gpus_to_sender_rev_map", "beta_split",
         "chunk_to_relay_map", "enforce_ordering"}
    )  # fmt: skip
    table.get("strategy", _one_of({"relay": "relay"}), "relay")
    connections = table.get("internode_conn", _connections, "fully-connected")
    senders = table.get("gpus_to_sender_rev_map", _per_gpu(_ranks), {})
    relay = table.get("chunk_to_relay_map", _relay, None)
    if relay and senders:
        table.fail("chunk_to_relay_map", "and gpus_to_sender_rev_map define the same: give one")
    seen: dict[int, int] = {}
    for sender, gpus in senders.items():
        for gpu in gpus:
            if seen.setdefault(gpu, sender) != sender:
                table.fail(
                    "gpus_to_sender_rev_map",
                    f"gives GPU {gpu} to senders {seen[gpu]} and {sender}, needs one",
                )
    return Internode(
        connections=connections,
        beta_split=table.get("beta_split", _per_gpu(_split), {}),
        relay=relay,
        senders=senders,
        enforce_ordering=table.get("enforce_ordering", _boolean, False),
    )


def _symmetries(top: _Table) -> tuple[Symmetry, ...]:
    made = top.get("symmetry_offsets", _few(_offset), ())
    if "automorphism" in top or "partition" in top:
        made += (_general(top),)
    if "symmetries" in top:
        rows = top.get("symmetries", _few(fields.table), ())
        for index, row in enumerate(rows):
            table = _Table(row, top.source, f"symmetries[{index}]")
            table.known({"automorphism", "partition"})
            made += (_general(table),)
    return made


def _general(table: _Table) -> Symmetry:
    table.require("automorphism")
    automorphism = table.get("automorphism", _list(_rank), ())
    ranks = len(automorphism)
    if not ranks or sorted(automorphism) != list(range(ranks)):
        table.fail("automorphism", f"needs each of 0 to {ranks - 1} once")
    partition = table.get("partition", _list(_ranks), ())
    members = sorted(rank for part in partition for rank in part)
    if partition and members != list(range(ranks)):
        table.fail("partition", f"needs each of 0 to {ranks - 1} in one part")
    parts = {frozenset(part) for part in partition}
    for part in partition:
        image = frozenset(automorphism[rank] for rank in part)
        if image not in parts:
            table.fail("partition", f"has part {fields.shown(list(part))}, whose image is no part")
    return Symmetry(automorphism=automorphism, partition=partition)


def _offset(value: Any) -> Symmetry:
    row = fields.items(value)
    if len(row) != 2:
        raise TypeError(f"{fields.shown(value)} needs two numbers: offset, group size")
    offset, group = fields.integer(row[0]), _count(row[1])
    if not -group < offset < group:
        raise ValueError(f"offset {offset} needs to be less than the group size {group}")
    return Symmetry(offset=offset, group=group)


def _connections(value: Any) -> Mapping[int, tuple[int, ...]] | str:
    if isinstance(value, str):
        return _one_of({name: name for name in _CONNECTIONS})(value)
    return _per_gpu(_ranks)(value)


def _relay(value: Any) -> RelayMap:
    row = fields.items(value)
    if len(row) != 2:
        raise TypeError(f"{fields.shown(value)} needs two numbers [r1, r2]")
    group, place = _count(row[0]), _rank(row[1])
    if place >= group:
        raise ValueError(f"[{group}, {place}] needs r2 below r1")
    return RelayMap(group=group, place=place)


def _per_gpu(read: Callable[[Any], _T]) -> Callable[[Any], dict[int, _T]]:
    def reader(value: Any) -> dict[int, _T]:
        made: dict[int, _T] = {}
        for key, entry in fields.table(value).items():
            if not re.fullmatch(r"[0-9]{1,6}", key):
                raise ValueError(f"key {fields.shown(key)} is no GPU of a node")
            if int(key) in made:
                raise ValueError(f"key {fields.shown(key)} is given twice")
            made[int(key)] = read(entry)
        return made

    return reader


def _list(read: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    return lambda value: tuple(read(entry) for entry in fields.items(value))


def _few(read: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    def reader(value: Any) -> tuple[_T, ...]:
        if len(fields.items(value)) > _MOST_ROWS:
            raise ValueError(f"has {len(value)} entries, needs at most {_MOST_ROWS}")
        return _list(read)(value)

    return reader


def _one_of(table: Mapping[str, _T]) -> Callable[[Any], _T]:
    def reader(value: Any) -> _T:
        if not isinstance(value, str) or value not in table:
            raise ValueError(f"is {fields.shown(value)}, needs one of {', '.join(table)}")
        return table[value]

    return reader


def _rank(value: Any) -> int:
    found = fields.integer(value)
    if not 0 <= found < _MAX:
        raise ValueError(f"{found} is no GPU, needs 0 or more")
    return found


def _ranks(value: Any) -> tuple[int, ...]:
    found = tuple(map(_rank, fields.items(value)))
    if len(set(found)) != len(found):
        raise ValueError(f"{fields.shown(list(found))} repeats a GPU")
    return found


def _count(value: Any) -> int:
    found = fields.integer(value)
    if not 1 <= found < _MAX:
        raise ValueError(f"{found} needs to be 1 to {_MAX - 1}")
    return found


def _split(value: Any) -> float:
    found = fields.number(value)
    if not _SPLIT[0] <= found <= _SPLIT[1]:
        raise ValueError(f"{found} needs to be {_SPLIT[0]:g} to {_SPLIT[1]:g}")
    return found


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{fields.shown(value)} needs to be true or false")
    return value


def _size(value: Any) -> int:
    if isinstance(value, str):
        match = re.fullmatch(
            r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMG]?I?)B?", value.upper().strip()
        )
        if not match or match[2] not in _UNITS:
            raise ValueError(
                f"{fields.shown(value)} needs a size like 1M (10^6 bytes), 64K or 4MiB"
            )
        found = round(float(match[1]) * _UNITS[match[2]])
    else:
        found = fields.integer(value)
    if not 1 <= found < 1 << 60:
        raise ValueError(f"{fields.shown(value)} needs to be at least 1 byte")
    return found
