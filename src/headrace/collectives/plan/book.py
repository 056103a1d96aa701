"""Plan book: for every collective and size, the best proven program on one topology."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np

import headrace
from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue
from headrace.collectives.demand import ROOTED, STANDARD, Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.locality import RankGroups, check_groups, grouping
from headrace.collectives.plan.plan import Plan, proof_from
from headrace.collectives.plan.portfolio import Portfolio
from headrace.collectives.plan.request import METHOD, Generator, Method, Request
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.errors import ArtifactError
from headrace.facades import offered_by, public_value
from headrace.topology import Topology

TABLES = ("lanes", "steps", "dependencies")

ALLREDUCE_SIZES = tuple(2**k << 10 for k in range(17))
"""1 KiB to 64 MiB."""

OTHER_SIZES = tuple(4**k << 10 for k in range(2, 9))
"""16 KiB to 64 MiB."""

MAX_ROOTS = 8
"""With more ranks, rooted collectives are planned for root 0 only."""

_FREE_VOLUME, _STEP_VOLUME = 1 << 21, 16
"""Limits of slots moved and values named by all programs of a book: fixed part, and per step.

Every program is proven, in time proportional to slots, and may move many slots in few steps.
"""


@public_value("headrace.collectives", eq=False)
class Entry:
    """`plan` for `collective` from `root` at ``from_bytes <= total_bytes < to_bytes``.

    `to_bytes` is None for the last range.
    """

    collective: Collective
    root: int
    from_bytes: int
    to_bytes: int | None
    plan: Plan


@offered_by("headrace.collectives")
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanBook(ArtifactValue, kind="plan-book", schema=2, command="headrace collectives plan"):
    """Plans by collective, root and size, for one topology.

    Attributes
    ----------
    entries : sorted by collective, root, size; the ranges of one collective and root adjoin.
    provenance : inputs and settings of the build; not part of the digest.

    Raises
    ------
    ProgramError : there are no entries.
    """

    topology: Topology
    groups: RankGroups | None
    entries: tuple[Entry, ...]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.entries:
            raise ProgramError("a plan book has no entries, needs those of one collective at least")

    @property
    def description(self) -> str:
        """Number of plans, their collectives, and the network."""
        collectives = ", ".join(sorted({entry.collective for entry in self.entries}))
        return f"{len(self.entries)} plans of {collectives} for {self.topology.name}"

    def choose(self, collective: Collective, total_bytes: int, root: int = 0) -> Plan | None:
        """Return the plan for a call: a pure function of the book's content and the arguments.

        None if the book holds none for that collective and root: use a template then.
        """
        for entry in self._index.get((Collective(collective), root), ()):
            if entry.to_bytes is None or total_bytes < entry.to_bytes:
                return entry.plan
        return None

    @property
    def digest(self) -> str:
        """SHA-256 of the content: ranks with equal books choose the same plans."""
        return self._digest

    @property
    def model(self) -> CostModel:
        """Cost model of the predictions of its plans."""
        return self.entries[0].plan.model

    @cached_property
    def _digest(self) -> str:
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

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables; every program is stored once."""
        number = {proof.program_digest: i for i, (_, proof) in enumerate(self.programs)}
        parts = [program.to_content() for program, _ in self.programs]
        head = {
            "topology": self.topology.to_head(),
            "groups": None if self.groups is None else [list(g) for g in self.groups],
            "programs": [
                {"program": program, "proof": proof.to_head()}
                for (program, _), (_, proof) in zip(parts, self.programs, strict=True)
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
        }
        return head, {name: stacked([tables[name] for _, tables in parts]) for name in TABLES}

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "plan book") -> "PlanBook":
        """Rebuild a book and prove every program again, as files are not trusted.

        Raises
        ------
        ArtifactError, ProgramError, TopologyError : naming the field.
        VerificationError : naming the program that does not meet its demand.
        """
        head = artifact.head
        try:
            topology = Topology.from_head(head["topology"], f"{source}: field 'topology'")
            groups = _groups(head["groups"], topology, source)
            _check_used(head["programs"], head["entries"], source)
            programs = _programs_from(head["programs"], artifact, topology, source)
            return cls(
                topology=topology,
                groups=groups,
                entries=_entries_from(head["entries"], programs, topology, source),
                provenance=artifact.provenance,
            )
        except (KeyError, TypeError) as error:
            raise ArtifactError(
                f"{source}: needs topology, groups, programs and entries [collective, root, "
                f"from_bytes, to_bytes, program, ...]: {error!r}"
            ) from error


def stacked(tables: Sequence[Table]) -> dict[str, np.ndarray]:
    """Concatenate the tables, with a column for the program that a row belongs to."""
    lengths = [len(next(iter(table.values()))) for table in tables]
    stacked = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return {**stacked, "program": np.repeat(np.arange(len(tables), dtype=np.int32), lengths)}


def _check_used(programs: Any, entries: Any, source: str) -> None:
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


def _programs_from(
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
            kind=Program.KIND,
            schema=Program.SCHEMA,
            head=fields.table(row["program"]),
            tables=tables,
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


def _entries_from(
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
    program, proof = programs[row["program"]]  # `_check_used` has read it
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


def _groups(found: Any, topology: Topology, source: str) -> RankGroups | None:
    if found is None:
        return None
    groups = tuple(tuple(map(fields.integer, fields.items(group))) for group in fields.items(found))
    try:
        check_groups(topology.ranks, groups)
    except ProgramError as error:
        raise ArtifactError(f"{source}: field 'groups': {error}") from error
    return groups


def build_book(
    topology: Topology,
    *,
    groups: RankGroups | None = None,
    collectives: Iterable[Collective] = STANDARD,
    sizes: Sequence[int] | None = None,
    generators: Sequence[Generator] = TEMPLATES,
    method: Method = METHOD,
    progress: Callable[[str, float], None] | None = None,
) -> PlanBook:
    """Plan every collective at every size, and give each plan its range of sizes.

    A collective for which the generators have no program is searched for by all others.

    Parameters
    ----------
    sizes : bytes to plan for (default: `ALLREDUCE_SIZES`, `OTHER_SIZES`). A size's plan is used
        up to the geometric middle between it and the next.
    progress : called with the current activity and the fraction that is done.

    Notes
    -----
    An interrupt (Ctrl-C) ends the search: the book then holds the collectives planned before, and
    the best candidates so far of the interrupted one, unless they were being compared.
    """
    report = progress or (lambda _what, _fraction: None)
    jobs = [
        (collective, root)
        for collective in dict.fromkeys(map(Collective, collectives))
        for root in _roots(collective, topology.ranks)
    ]
    entries: list[Entry] = []
    for done, (collective, root) in enumerate(jobs):
        report(
            f"{collective} (root {root})" if collective in ROOTED else collective, done / len(jobs)
        )
        default = ALLREDUCE_SIZES if collective is Collective.ALLREDUCE else OTHER_SIZES
        at = sorted({int(size) for size in sizes or default})  # 1e6 is a size, too
        try:
            portfolio = _portfolio(
                Request(topology, collective, groups=groups, root=root, method=method),
                at,
                generators,
                lambda what, share, done=done: report(what, (done + share) / len(jobs)),
            )
            plans = [portfolio.plan(size) for size in at]
        except KeyboardInterrupt:  # before a first candidate, or while they are compared
            if not entries:
                raise
            break
        entries += _ranges(collective, root, plans)
        if portfolio.interrupted:
            break
    report("done", 1.0)
    return PlanBook(
        topology=topology,
        groups=grouping(topology, groups),
        entries=tuple(sorted(entries, key=lambda e: (e.collective, e.root, e.from_bytes))),
        provenance=_provenance(topology, sizes, generators, method),
    )


def _provenance(
    topology: Topology,
    sizes: Sequence[int] | None,
    generators: Sequence[Generator],
    method: Method,
) -> dict[str, Any]:
    return {
        "headrace": headrace.__version__,
        "topology": topology.digest,
        "sizes": None if sizes is None else list(sizes),
        "generators": [generator.name for generator in generators],
        "model": method.model.name,
        "seed": method.seed,
        "effort": method.effort,
    }


def _portfolio(
    request: Request,
    sizes: Sequence[int],
    generators: Sequence[Generator],
    progress: Callable[[str, float], None],
) -> Portfolio:
    """Return the candidates of the generators, or of all searches where those have none.

    Where ranks lack links to others, as in a mesh, no template may fit.
    """
    applied = _applied(generators, request.collective)
    portfolio = Portfolio.of(request, sizes, generators=applied, progress=progress)
    if portfolio.candidates:
        return portfolio
    from headrace.collectives.plan.generators.table import SEARCH_GENERATORS  # loads SciPy

    others = [generator for generator in SEARCH_GENERATORS if generator not in applied]
    searched = Portfolio.of(request, sizes, generators=others, progress=progress)
    searched.absent[:0] = portfolio.absent
    return searched


def _applied(generators: Sequence[Generator], collective: Collective) -> Sequence[Generator]:
    """Templates only for rooted collectives, as every root would need a search of its own."""
    if collective not in ROOTED:
        return generators
    templates = [generator for generator in generators if generator.min_gap is None]
    return templates or generators


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
