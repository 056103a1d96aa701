"""Files of every kind that are crafted or damaged: accepted or refused, within limits.

Files of under 1 MB took minutes or many GB: a book proved thousands of programs that no entry
used, an uneven exchange summed its counts for every rank and slot, a mask of contributors was made
again for every chunk, MSCCL XML of empty GPUs listed millions of values, and `show` printed every
row and took names for mark-up.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.artifact import Artifact, from_bytes
from headrace.cli.artifacts import show_command, verify_command
from headrace.collectives.custom import demand_from_json
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.export import msccl_xml, mscclpp_json
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.errors import HeadraceError
from tests import crafted

RING = lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=3)))
SKETCH = """{"nnodes": 2, "intranode_sketch": {"strategy": "switch", "switches": [[0, 1], [2, 3]]},
"internode_sketch": {"internode_conn": {"0": [1], "1": [0]}, "beta_split": {"0": 2}},
"symmetry_offsets": [[1, 2]], "hyperparameters": {"input_chunkup": 2, "input_size": "1M"}}"""
CUSTOM = """{"ranks": 3, "slots": 2, "before": [[0, 0, 0], [1, 1, 1]],
"after": [[2, 0, 0], [1, 0, 0, [0]]]}"""
VALUES = [0, -1, 1, 2, 63, 64, 1 << 31, 1 << 62, 1e-320, 1e300, "", "[/x]", None, [], {}, True]


@pytest.mark.slow
def test_crafted_files_are_read_within_seconds_and_a_gigabyte(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.crafted", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    wanted = [f"{name}: {outcome}" for name, (_, outcome) in crafted.CASES.items()]
    assert run.stdout.splitlines() == wanted, run.stderr[-2000:]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < 1e6


def test_damaged_artifacts_are_read_or_refused(tmp_path: Path) -> None:
    """Fields, columns and bytes are altered, with the digest made to match."""
    chance = random.Random(14)
    program, sends = crafted.broadcast(2)
    originals = [
        RING.to_artifact(),
        crafted.plan(program, sends),
        crafted.book([program], 2),
        crafted.topology(crafted.network(2, [(0, 1)], crafted.SHARED[:1])),
        crafted.profile(crafted.network(2, [(0, 1)]), [[0], [1]]),
        crafted.dihedral(8),
    ]
    for original in originals:
        for _ in range(60):
            raw = altered(chance, from_bytes(original.to_bytes())).to_bytes()
            read(tmp_path / "artifact", raw, [show_command, verify_command])
        for _ in range(10):
            read(tmp_path / "artifact", damaged(chance, original.to_bytes()), [show_command])


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        (SKETCH, load_sketch),
        (CUSTOM, demand_from_json),
        (msccl_xml.export(RING), verify_command),
        (mscclpp_json.export(RING), verify_command),
    ],
    ids=["sketch", "demand", "xml", "json"],
)
def test_damaged_texts_are_read_or_refused(
    text: str, reader: Callable[[Path], object], tmp_path: Path
) -> None:
    chance = random.Random(14)
    for _ in range(150):
        read(tmp_path / "text", damaged(chance, text.encode()), [reader])


def read(path: Path, raw: bytes, readers: list[Callable[[Path], object]]) -> None:
    """Read a file in every way; anything but an answer or a documented error fails the test."""
    path.write_bytes(raw)
    for reader in readers:
        try:
            reader(path)
        except HeadraceError as error:
            assert 0 < len(str(error)) < 5000


def altered(chance: random.Random, artifact: Artifact) -> Artifact:
    """Return the artifact with another value in one field or column; its digest will match."""
    tables = {name: dict(table) for name, table in artifact.tables.items()}
    filled = [(t, c) for t, table in tables.items() for c, column in table.items() if len(column)]
    if filled and chance.random() < 0.5:
        table, name = chance.choice(filled)
        column = tables[table][name].copy()
        value = chance.choice([0, 1, -1, 2, 3, 64, 127])
        column[chance.randrange(len(column))] = value % 256 if column.dtype == np.uint8 else value
        tables[table][name] = column if chance.random() < 0.9 else column.astype(np.float64)
        return replace(artifact, tables=tables)
    place: dict[str, object] | list[object] = dict(artifact.head)
    head = place
    while place:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))  # type: ignore[arg-type]
        inner = place[key]  # type: ignore[index, call-overload]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.2:
            place[key] = chance.choice(VALUES)  # type: ignore[index, call-overload]
            break
        place = inner
    return replace(artifact, head=head)


def damaged(chance: random.Random, raw: bytes) -> bytes:
    """Return `raw` with bytes or numbers replaced, left out or repeated."""
    made = bytearray(raw)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(made))
        length = chance.choice([1, 1, 2, 20])
        inserted = chance.choice(
            [b"", b"9" * 30, b"-1", b"[", b'"', b"\xff", bytes(made[at : at + 40])]
        )
        made[at : at + length] = inserted
    return bytes(made)
