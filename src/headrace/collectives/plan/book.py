"""The plan book: for every collective and size, the best proven program on one topology."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

import headrace
import headrace.artifact as artifact_io
from headrace.artifact import Artifact
from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.plan.generators import GENERATORS, Generator, locality
from headrace.collectives.plan.plan import Plan, proof_from
from headrace.collectives.plan.portfolio import Portfolio
from headrace.collectives.plan.templates.shape import Groups
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.errors import ArtifactError
from headrace.topology import Topology

_SCHEMA = 1
_TABLES = ("lanes", "steps", "dependencies")

ALLREDUCE_SIZES = tuple(2**k << 10 for k in range(17))
"""1 KiB to 64 MiB."""

OTHER_SIZES = tuple(4**k << 10 for k in range(2, 9))
"""16 KiB to 64 MiB."""

MAX_ROOTS = 8
"""With more ranks, rooted collectives are planned for root 0 only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """`plan` serves `collective` from `root` for ``from_bytes <= total_bytes < to_bytes``.

    `to_bytes` is None for the last range.
    """

    collective: Collective
    root: int
    from_bytes: int
    to_bytes: int | None
    plan: Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanBook:
    """Plans by collective, root and size, for one topology.

    Attributes
    ----------
    entries : sorted by collective, root, size; the ranges of one collective and root adjoin.
    provenance : what it was built with; not part of the digest.
    """

    topology: Topology
    groups: Groups | None
    entries: tuple[Entry, ...]
    provenance: Mapping[str, Any]

    def choose(self, collective: Collective, total_bytes: int, root: int = 0) -> Plan | None:
        """Return the plan for a call: a pure function of the book's content and the arguments.

        None if the book holds none for that collective and root: then a template has to do.
        """
        for entry in self._index.get((Collective(collective), root), ()):
            if entry.to_bytes is None or total_bytes < entry.to_bytes:
                return entry.plan
        return None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: ranks with equal books choose alike."""
        return self.to_artifact().digest

    @cached_property
    def programs(self) -> tuple[tuple[Program, Proof], ...]:
        """The distinct programs, in the order of their first entry."""
        found = {
            entry.plan.proof.program_digest: (entry.plan.program, entry.plan.proof)
            for entry in self.entries
        }
        return tuple(found.values())

    @cached_property
    def _index(self) -> dict[tuple[Collective, int], list[Entry]]:
        index: dict[tuple[Collective, int], list[Entry]] = {}
        for entry in self.entries:
            index.setdefault((entry.collective, entry.root), []).append(entry)
        return index

    def to_artifact(self) -> Artifact:
        """Return the book as an artifact of kind "plan-book"; every program is stored once."""
        number = {proof.program_digest: i for i, (_, proof) in enumerate(self.programs)}
        parts = [program.to_artifact() for program, _ in self.programs]
        return Artifact(
            kind="plan-book",
            schema=_SCHEMA,
            head={
                "topology": self.topology.to_head(),
                "groups": None if self.groups is None else [list(g) for g in self.groups],
                "programs": [
                    {"program": part.head, "proof": asdict(proof)}
                    for part, (_, proof) in zip(parts, self.programs, strict=True)
                ],
                "entries": [
                    {
                        "collective": entry.collective.value,
                        "root": entry.root,
                        "from_bytes": entry.from_bytes,
                        "to_bytes": entry.to_bytes,
                        "program": number[entry.plan.proof.program_digest],
                        **entry.plan.certificate(),
                    }
                    for entry in self.entries
                ],
            },
            tables={name: _stacked([part.tables[name] for part in parts]) for name in _TABLES},
            provenance=self.provenance,
        )

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "plan book") -> "PlanBook":
        """Rebuild a book; every program's digest is compared with its proof's.

        Raises
        ------
        ArtifactError, ProgramError, TopologyError : naming the field.
        """
        head = artifact.head
        try:
            topology = Topology.from_head(head["topology"], source)
            groups = head["groups"]
            programs = _unstacked(head["programs"], artifact, source)
            entries = tuple(_entry(row, programs, source) for row in head["entries"])
            return cls(
                topology=topology,
                groups=None if groups is None else tuple(tuple(map(int, g)) for g in groups),
                entries=entries,
                provenance=artifact.provenance,
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ArtifactError(
                f"{source}: needs topology, groups, programs and entries [collective, root, "
                f"from_bytes, to_bytes, program, ...]: {error!r}"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the book to `path`."""
        self.to_artifact().save(path)

    @classmethod
    def load(cls, path: str | Path) -> "PlanBook":
        """Read a book from `path`; see `from_artifact` for what it raises."""
        return cls.from_artifact(artifact_io.load(path, "plan-book", _SCHEMA), str(path))


def _entry(row: Mapping[str, Any], programs: Sequence[tuple[Program, Proof]], source: str) -> Entry:
    program, proof = programs[row["program"]]
    try:
        collective = Collective(row["collective"])
    except ValueError as error:
        raise ArtifactError(f"{source}: field 'entries.collective': {error}") from error
    to_bytes = row["to_bytes"]
    return Entry(
        collective=collective,
        root=int(row["root"]),
        from_bytes=int(row["from_bytes"]),
        to_bytes=None if to_bytes is None else int(to_bytes),
        plan=Plan.from_certificate(row, program, proof, source),
    )


def _stacked(tables: Sequence[artifact_io.Table]) -> dict[str, np.ndarray]:
    """One table of all, with a column that says which program a row belongs to."""
    lengths = [len(next(iter(table.values()))) for table in tables]
    stacked = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return {**stacked, "program": np.repeat(np.arange(len(tables), dtype=np.int32), lengths)}


def _unstacked(
    rows: Sequence[Mapping[str, Any]], artifact: Artifact, source: str
) -> list[tuple[Program, Proof]]:
    ends = {
        name: np.searchsorted(artifact.tables[name]["program"], np.arange(len(rows) + 1))
        for name in _TABLES
    }
    programs: list[tuple[Program, Proof]] = []
    for i, row in enumerate(rows):
        tables = {
            name: {
                column: values[ends[name][i] : ends[name][i + 1]]
                for column, values in artifact.tables[name].items()
                if column != "program"
            }
            for name in _TABLES
        }
        part = Artifact(kind="program", schema=1, head=row["program"], tables=tables)
        program = Program.from_artifact(part)
        programs.append((program, proof_from(row["proof"], program, source)))
    return programs


def build_book(
    topology: Topology,
    *,
    groups: Groups | None = None,
    collectives: Iterable[Collective] = tuple(Collective),
    sizes: Sequence[int] | None = None,
    generators: Sequence[Generator] = GENERATORS,
    progress: Callable[[str, float], None] | None = None,
) -> PlanBook:
    """Plan every collective at every size and say from where to where each plan is used.

    Parameters
    ----------
    sizes : bytes to plan for (default: `ALLREDUCE_SIZES`, `OTHER_SIZES`). A size's plan is used
        up to the geometric middle between it and the next.
    progress : called with what is being planned and the fraction that is done.
    """
    report = progress or (lambda _what, _fraction: None)
    jobs = [
        (collective, root)
        for collective in map(Collective, collectives)
        for root in _roots(collective, topology.ranks)
    ]
    entries: list[Entry] = []
    for done, (collective, root) in enumerate(jobs):
        report(
            f"{collective} (root {root})" if collective in ROOTED else collective, done / len(jobs)
        )
        default = ALLREDUCE_SIZES if collective is Collective.ALLREDUCE else OTHER_SIZES
        at = sorted(set(sizes or default))
        portfolio = Portfolio.of(
            topology, collective, at[-1], groups=groups, root=root, generators=generators
        )
        entries += _ranges(collective, root, [portfolio.plan(size) for size in at])
    report("done", 1.0)
    return PlanBook(
        topology=topology,
        groups=groups or locality(topology),
        entries=tuple(sorted(entries, key=lambda e: (e.collective, e.root, e.from_bytes))),
        provenance={
            "headrace": headrace.__version__,
            "topology": topology.digest,
            "sizes": None if sizes is None else list(sizes),
            "generators": [generator.name for generator in generators],
        },
    )


def _roots(collective: Collective, ranks: int) -> range:
    return range(ranks if ranks <= MAX_ROOTS else 1) if collective in ROOTED else range(1)


def _ranges(collective: Collective, root: int, plans: Sequence[Plan]) -> list[Entry]:
    """Give each plan its range; neighbours with the same program become one."""
    entries: list[Entry] = []
    for i, plan in enumerate(plans):
        start = isqrt(plans[i - 1].total_bytes * plan.total_bytes) if i else 0
        if entries and entries[-1].plan.proof == plan.proof:
            entries[-1] = replace(entries[-1], plan=plan)  # scored at the largest size
            continue
        if entries:
            entries[-1] = replace(entries[-1], to_bytes=start)
        entries.append(
            Entry(collective=collective, root=root, from_bytes=start, to_bytes=None, plan=plan)
        )
    return entries
