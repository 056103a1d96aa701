"""Entries of a plan book, and their storage with their programs in tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.collectives.demand import Collective
from headrace.collectives.plan.plan import Plan, proof_from
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import PROGRAM_SCHEMA, Program
from headrace.errors import ArtifactError
from headrace.topology import Topology

TABLES = ("lanes", "steps", "dependencies")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """`plan` for `collective` from `root` at ``from_bytes <= total_bytes < to_bytes``.

    `to_bytes` is None for the last range.
    """

    collective: Collective
    root: int
    from_bytes: int
    to_bytes: int | None
    plan: Plan


def stacked(tables: Sequence[Table]) -> dict[str, np.ndarray]:
    """Concatenate the tables, with a column for the program that a row belongs to."""
    lengths = [len(next(iter(table.values()))) for table in tables]
    stacked = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return {**stacked, "program": np.repeat(np.arange(len(tables), dtype=np.int32), lengths)}


_FREE_VOLUME, _STEP_VOLUME = 1 << 21, 16
"""Limits of slots moved and values named by all programs of a book: fixed part, and per step.

Every program is proven, in time proportional to slots, and may move many slots in few steps.
"""


def check_used(programs: Any, entries: Any, source: str) -> None:
    """Raise ArtifactError unless entries name all programs and no other."""
    used: set[int] = set()
    most = len(fields.items(programs)) - 1
    for index, row in enumerate(fields.items(entries)):
        try:
            number = fields.integer(fields.table(row)["program"])
        except TypeError as error:
            raise ArtifactError(f"{source}: field 'entries[{index}]': {error}") from error
        if not 0 <= number <= most:
            raise ArtifactError(
                f"{source}: entries[{index}]: field 'program' is {number}, needs 0 to {most}"
            )
        used.add(number)
    for index in range(most + 1):
        if index not in used:
            raise ArtifactError(
                f"{source}: field 'programs[{index}]' is of no entry, needs one at least"
            )


def programs_from(
    rows: Any, artifact: Artifact, topology: Topology, source: str
) -> list[tuple[Program, Proof]]:
    """Return the programs of the tables, each proven again.

    Raises
    ------
    ArtifactError, ProgramError : naming the field.
    VerificationError : naming the program that does not pass.
    """
    heads = [fields.table(row) for row in fields.items(rows)]
    owners = {name: _owners(artifact, name, len(heads), source) for name in TABLES}
    ends = {name: np.searchsorted(owners[name], np.arange(len(heads) + 1)) for name in TABLES}
    programs: list[tuple[Program, Proof]] = []
    volume = 0
    most = _FREE_VOLUME + _STEP_VOLUME * len(owners["steps"])
    for i, row in enumerate(heads):
        tables = {
            name: {
                column: values[ends[name][i] : ends[name][i + 1]]
                for column, values in artifact.tables[name].items()
                if column != "program"
            }
            for name in TABLES
        }
        where = f"{source}: field 'programs[{i}]'"
        part = Artifact(
            kind="program", schema=PROGRAM_SCHEMA, head=fields.table(row["program"]), tables=tables
        )
        program = Program.from_artifact(part, where)
        if program.demand.ranks != topology.ranks:
            raise ArtifactError(
                f"{where}: ranks is {program.demand.ranks}, needs {topology.ranks} as in the "
                "topology"
            )
        volume += program.demand.conditions + int(program.steps["count"].sum(dtype=np.int64))
        if volume > most:
            raise ArtifactError(
                f"{where}: the programs so far move and name {volume} slots, needs at most {most} "
                f"in {len(owners['steps'])} steps: make a book of fewer sizes or chunks"
            )
        programs.append((program, proof_from(fields.table(row["proof"]), program, where)))
    return programs


def _owners(artifact: Artifact, table: str, programs: int, source: str) -> np.ndarray:
    """Return the column of the program that each row of `table` belongs to."""
    if table not in artifact.tables:
        raise ArtifactError(f"{source}: table '{table}' is missing")
    owner = artifact.tables[table].get("program")
    if owner is None or owner.dtype.kind != "i":
        raise ArtifactError(f"{source}: column '{table}.program' is missing or not of integers")
    sorted_in_range = not len(owner) or (owner[0] >= 0 and owner[-1] < programs)
    if not sorted_in_range or np.any(owner[1:] < owner[:-1]):
        raise ArtifactError(
            f"{source}: column '{table}.program' needs indices from 0 to {programs - 1}, sorted"
        )
    return owner


def entries_from(
    rows: Any, programs: Sequence[tuple[Program, Proof]], topology: Topology, source: str
) -> tuple[Entry, ...]:
    """Read the entries; raises ArtifactError if one does not fit its program or its neighbour."""
    entries: list[Entry] = []
    for i, row in enumerate(fields.items(rows)):
        where = f"{source}: field 'entries[{i}]"
        try:
            entry = _entry(fields.table(row), topology, programs, f"{source}: entries[{i}]")
        except KeyError as error:
            raise ArtifactError(f"{where}.{error.args[0]}' is missing") from error
        except TypeError as error:
            raise ArtifactError(f"{where}': {error}") from error
        _check_plan(entry, topology, where)
        _check_range(entry, entries[-1] if entries else None, where)
        entries.append(entry)
    return tuple(entries)


def _entry(
    row: Mapping[str, Any],
    topology: Topology,
    programs: Sequence[tuple[Program, Proof]],
    where: str,
) -> Entry:
    if row["collective"] not in tuple(Collective):
        raise ArtifactError(
            f"{where}: field 'collective' is {row['collective']!r}, needs one of "
            f"{', '.join(Collective)}"
        )
    to_bytes = row["to_bytes"]
    program, proof = programs[row["program"]]  # `check_used` has read it
    return Entry(
        collective=Collective(row["collective"]),
        root=fields.integer(row["root"]),
        from_bytes=fields.integer(row["from_bytes"]),
        to_bytes=None if to_bytes is None else fields.integer(to_bytes),
        plan=Plan.from_certificate(row, topology, program, proof, where),
    )


def _check_plan(entry: Entry, topology: Topology, where: str) -> None:
    demand, bound = entry.plan.program.demand, entry.plan.bound
    for name, found, wanted in (
        ("collective", entry.collective.value, demand.collective.value),
        ("root", entry.root, demand.root),
        ("bound.collective", bound.collective.value, demand.collective.value),
        ("bound.topology_digest", bound.topology_digest, topology.digest),
    ):
        if found != wanted:
            whose = "topology" if name.endswith("digest") else "program"
            raise ArtifactError(f"{where}.{name}' is {found!r}, its {whose}'s is {wanted!r}")


def _check_range(entry: Entry, before: Entry | None, where: str) -> None:
    """Raise ArtifactError unless the ranges of a collective and root adjoin, from 0 on."""
    key = (entry.collective, entry.root)
    if before is not None and key < (before.collective, before.root):
        raise ArtifactError(f"{where}' is {key[0].value} of root {key[1]}, which is not sorted")
    follows = before is not None and key == (before.collective, before.root)
    start = before.to_bytes if before is not None and follows else 0
    if entry.from_bytes != start:
        needs = "nothing: the range before has no end" if start is None else str(start)
        raise ArtifactError(f"{where}.from_bytes' is {entry.from_bytes}, needs {needs}")
    if entry.to_bytes is not None and entry.to_bytes < entry.from_bytes:
        raise ArtifactError(
            f"{where}.to_bytes' is {entry.to_bytes}, needs at least {entry.from_bytes}"
        )
