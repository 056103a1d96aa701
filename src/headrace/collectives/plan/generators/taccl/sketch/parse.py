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
from headrace.fields import Field
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
    top = Field(load_commented(text, source), source, SketchError)
    top.allow(
        "name", "nnodes", "intranode_sketch", "internode_sketch", "symmetry_offsets",
        "symmetries", "automorphism", "partition", "hyperparameters",
    )  # fmt: skip
    intranode = _intranode(top.at("intranode_sketch"))
    between = top.at("internode_sketch", default=None)
    internode = _internode(between) if "internode_sketch" in top.found else None
    nodes = _get(top, "nnodes", _count, 2 if internode else 1)
    if nodes > 1 and internode is None:
        raise between.fail(f"is missing, a sketch of {nodes} nodes needs it")
    hyper = top.at("hyperparameters", default={})
    hyper.allow("input_chunkup", "input_size", "heuristic")
    return Sketch(
        name=_get(top, "name", fields.text, name),
        nodes=nodes,
        intranode=intranode,
        internode=internode if nodes > 1 else None,
        symmetries=_symmetries(top),
        chunkup=_get(hyper, "input_chunkup", _count, 1),
        input_bytes=_get(hyper, "input_size", _size, None),
    )


def _get(table: Field, name: str, read: Callable[[Any], _T], default: Any) -> _T:
    return table.at(name).read(read) if name in table.found else default


def _intranode(table: Field) -> Intranode:
    table.allow("strategy", "switches", "switch_hyperedge_strategy")
    strategy = table.at("strategy").read(_one_of({s.value: s for s in Strategy}))
    switches = _get(table, "switches", _few(_ranks), ())
    policies = _get(
        table,
        "switch_hyperedge_strategy",
        _list(_one_of(_POLICIES)),
        (Policy.AUTO,) * len(switches),
    )
    if strategy is Strategy.SWITCH and not switches:
        raise table.at("switches", default=None).fail(
            "is missing or empty, strategy 'switch' needs the GPUs of each"
        )
    if strategy is not Strategy.SWITCH and switches:
        raise table.at("switches", default=None).fail(
            f"is given, strategy '{strategy}' has none: use 'switch'"
        )
    if len(policies) != len(switches):
        raise table.at("switch_hyperedge_strategy", default=None).fail(
            f"has {len(policies)} entries, needs one for each of {len(switches)} switches",
        )
    return Intranode(strategy=strategy, switches=switches, policies=policies)


def _internode(table: Field) -> Internode:
    table.allow(
        "strategy", "internode_conn", "gpus_to_sender_rev_map", "beta_split",
        "chunk_to_relay_map", "enforce_ordering",
    )  # fmt: skip
    _get(table, "strategy", _one_of({"relay": "relay"}), "relay")
    connections = _get(table, "internode_conn", _connections, "fully-connected")
    senders = _get(table, "gpus_to_sender_rev_map", _per_gpu(_ranks), {})
    relay = _get(table, "chunk_to_relay_map", _relay, None)
    if relay and senders:
        raise table.at("chunk_to_relay_map", default=None).fail(
            "and gpus_to_sender_rev_map define the same: give one"
        )
    seen: dict[int, int] = {}
    for sender, gpus in senders.items():
        for gpu in gpus:
            if seen.setdefault(gpu, sender) != sender:
                raise table.at("gpus_to_sender_rev_map", default=None).fail(
                    f"gives GPU {gpu} to senders {seen[gpu]} and {sender}, needs one",
                )
    return Internode(
        connections=connections,
        beta_split=_get(table, "beta_split", _per_gpu(_split), {}),
        relay=relay,
        senders=senders,
        enforce_ordering=_get(table, "enforce_ordering", fields.boolean, False),
    )


def _symmetries(top: Field) -> tuple[Symmetry, ...]:
    symmetries = _get(top, "symmetry_offsets", _few(_offset), ())
    if "automorphism" in top.found or "partition" in top.found:
        symmetries += (_general(top),)
    rows = top.at("symmetries", default=())
    rows.read(_few(fields.table))
    for table in rows.items():
        table.allow("automorphism", "partition")
        symmetries += (_general(table),)
    return symmetries


def _general(table: Field) -> Symmetry:
    automorphism = table.at("automorphism").read(_list(_rank))
    ranks = len(automorphism)
    if not ranks or sorted(automorphism) != list(range(ranks)):
        raise table.at("automorphism", default=None).fail(f"needs each of 0 to {ranks - 1} once")
    partition = _get(table, "partition", _list(_ranks), ())
    members = sorted(rank for part in partition for rank in part)
    if partition and members != list(range(ranks)):
        raise table.at("partition", default=None).fail(
            f"needs each of 0 to {ranks - 1} in one part"
        )
    parts = {frozenset(part) for part in partition}
    for part in partition:
        image = frozenset(automorphism[rank] for rank in part)
        if image not in parts:
            raise table.at("partition", default=None).fail(
                f"has part {fields.shown(list(part))}, whose image is no part"
            )
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
        read_entries: dict[int, _T] = {}
        for key, entry in fields.table(value).items():
            if not re.fullmatch(r"[0-9]{1,6}", key):
                raise ValueError(f"key {fields.shown(key)} is no GPU of a node")
            if int(key) in read_entries:
                raise ValueError(f"key {fields.shown(key)} is given twice")
            read_entries[int(key)] = read(entry)
        return read_entries

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
    gpu = fields.integer(value)
    if not 0 <= gpu < _MAX:
        raise ValueError(f"{gpu} is no GPU, needs 0 or more")
    return gpu


def _ranks(value: Any) -> tuple[int, ...]:
    gpus = tuple(map(_rank, fields.items(value)))
    if len(set(gpus)) != len(gpus):
        raise ValueError(f"{fields.shown(list(gpus))} repeats a GPU")
    return gpus


def _count(value: Any) -> int:
    count = fields.integer(value)
    if not 1 <= count < _MAX:
        raise ValueError(f"{count} needs to be 1 to {_MAX - 1}")
    return count


def _split(value: Any) -> float:
    share = fields.number(value)
    if not _SPLIT[0] <= share <= _SPLIT[1]:
        raise ValueError(f"{share} needs to be {_SPLIT[0]:g} to {_SPLIT[1]:g}")
    return share


def _size(value: Any) -> int:
    if isinstance(value, str):
        match = re.fullmatch(
            r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMG]?I?)B?", value.upper().strip()
        )
        if not match or match[2] not in _UNITS:
            raise ValueError(
                f"{fields.shown(value)} needs a size like 1M (10^6 bytes), 64K or 4MiB"
            )
        nbytes = round(float(match[1]) * _UNITS[match[2]])
    else:
        nbytes = fields.integer(value)
    if not 1 <= nbytes < 1 << 60:
        raise ValueError(f"{fields.shown(value)} needs to be at least 1 byte")
    return nbytes
