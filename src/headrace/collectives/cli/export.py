"""``headrace export``: plans for MSCCL and MSCCL++."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import headrace.artifact as artifact_io
from headrace.cli.answers import WrittenFile
from headrace.cli.console import terminal
from headrace.cli.options import flag, output_option, size_option
from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.export.buffers import COLLECTIVES
from headrace.collectives.export.runtimes import PROCESSORS, RUNTIMES, STRICTEST
from headrace.collectives.export.threadblocks import INSTANCES, PROTOCOLS, Target
from headrace.collectives.program import Program
from headrace.errors import ArtifactError, InputError, VerificationError
from headrace.kinds import load_known
from headrace.units import parse_size, size

if TYPE_CHECKING:
    from headrace.collectives.plan.book import Entry


_FLOAT32_BYTES = 4


class ExportFormat(StrEnum):
    """Formats of exports."""

    MSCCL_XML = "msccl-xml"
    MSCCLPP_JSON = "mscclpp-json"


class RuntimeName(StrEnum):
    """Runtimes, and the strictest of all that read the format."""

    STRICTEST = "strictest"
    MSCCL = "msccl"
    MSCCL_EXECUTOR_NCCL = "msccl-executor-nccl"
    MSCCLPP = "mscclpp"


class Protocol(StrEnum):
    """NCCL's protocols."""

    SIMPLE = "Simple"
    LL = "LL"
    LL128 = "LL128"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """An export, proven as written, and the lines on what selects it."""

    file: WrittenFile
    collective: str
    ranks: int
    root: int | None
    instances: int
    in_place: bool
    selection: list[str]


def export_command(
    source: Annotated[
        Path, typer.Argument(help="A plan, or a book with --collective and --size.", metavar="PLAN")
    ],
    output: Annotated[Path, output_option("File to write: the export.")],
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Format of the file.")
    ] = ExportFormat.MSCCL_XML,
    collective: Annotated[
        Collective | None, typer.Option(help="Collective, of a plan book.")
    ] = None,
    total: Annotated[
        str | None,
        size_option("Size of a call's whole buffer, of a plan book", "--size"),
    ] = None,
    root: Annotated[int, typer.Option(help="Root, of a plan book.")] = 0,
    instances: Annotated[
        int | None,
        typer.Option(
            help="Parallel copies, each moving a part of every chunk: 1, 2, 4 or 8. Unless given "
            "1 up to 1 MB and 8 above, less where that breaks a limit, or makes more threadblocks "
            "than some GPUs have processors."
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place/--out-of-place", help="Whether the calls' input and output overlap."
        ),
    ] = False,
    buffered: Annotated[
        bool,
        flag(
            "--buffered",
            "Rely on the chunks that NCCL's connections buffer, 2 with Simple, 8 with LL and "
            "LL128 (rings take fewer rounds); unless given, on none.",
        ),
    ] = False,
    protocol: Annotated[
        Protocol, typer.Option(help="NCCL's protocol; mscclpp-json takes Simple only.")
    ] = Protocol.SIMPLE,
    runtime: Annotated[
        RuntimeName,
        typer.Option(
            help="Runtime whose limits apply; strictest: those of all that read the format."
        ),
    ] = RuntimeName.STRICTEST,
    min_bytes: Annotated[
        str | None,
        size_option("Least size that selects it; unless given the book's range, or none"),
    ] = None,
    max_bytes: Annotated[
        str | None,
        size_option("Largest size that selects it; unless given the book's range, or none"),
    ] = None,
) -> ExportResult:
    """Write a plan in a form that MSCCL or MSCCL++ runs.

    Threadblocks that are too long for the runtime are split; a plan that it cannot run is not
    written. The text is read back and proven before the file is made.

    Example: headrace export best.plan -o allreduce.xml
    """
    program, scored, sizes = _program(source, collective, total, root)
    low = sizes[0] if min_bytes is None else parse_size(min_bytes, "--min-bytes")
    high = sizes[1] if max_bytes is None else parse_size(max_bytes, "--max-bytes")
    text, used = _written(
        program,
        form,
        _counts(instances, scored),
        Target(
            in_place=in_place,
            buffered=buffered,
            protocol=protocol.value,
            runtime=runtime.value,
            min_bytes=low,
            max_bytes=high,
        ),
    )
    artifact_io.write_file(output, text.encode())
    demand = program.demand
    rooted = f", root {demand.root}" if demand.collective in ROOTED else ""
    terminal().print(
        f"{output}: {demand.collective} of {demand.ranks} GPUs{rooted}, {used} instances, "
        f"{'in place' if in_place else 'out of place'}, {size(len(text))}, proven as written",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    selection = _selection(text, form, runtime, scored)
    for line in selection:
        terminal().print(line, highlight=False, markup=False, soft_wrap=True)
    return ExportResult(
        file=WrittenFile.at(output),
        collective=demand.collective.value,
        ranks=demand.ranks,
        root=demand.root if demand.collective in ROOTED else None,
        instances=used,
        in_place=in_place,
        selection=selection,
    )


def _selection(text: str, form: ExportFormat, runtime: RuntimeName, scored: int) -> list[str]:
    """Return the calls that select the file, and reasons why it may not run, as lines.

    Parameters
    ----------
    scored : the size in bytes that the plan is meant for; 0 if none is known.
    """
    from headrace.collectives.export import msccl_xml, mscclpp_read
    from headrace.collectives.export.runtimes import (
        oversubscription,
        runtime_of,
        selection,
        unread,
    )

    read = msccl_xml.read if form is ExportFormat.MSCCL_XML else mscclpp_read.read
    algorithm, _ = read(text)
    calls, multiple_bytes = selection(algorithm, runtime_of(runtime.value, form.value))
    lines = [f"taken for {calls}; others silently take another algorithm"]
    if scored % multiple_bytes:
        step = multiple_bytes * (_FLOAT32_BYTES if form is ExportFormat.MSCCL_XML else 1)
        nearest = max(1, round(scored / step)) * step
        lines.append(
            f"warning: the plan is meant for {scored} bytes, which no such count makes: plan for "
            f"another size, such as --size {nearest}"
        )
    if warning := oversubscription(algorithm):
        lines.append(f"warning: {warning}")
    for reader in unread(algorithm.collective, form.value):
        if runtime is RuntimeName.STRICTEST:
            is_known = COLLECTIVES[algorithm.collective] in reader.collectives
            remedy = f"give --runtime {reader.name} for it" if is_known else "it has none"
            lines.append(f"warning: {reader.name} refuses coll {algorithm.collective}: {remedy}")
    return lines


def _counts(instances: int | None, scored: int) -> list[int]:
    """Return the instance counts to try, in order."""
    from headrace.collectives.export.threadblocks import suggested_instances

    if instances is not None:
        return [instances]
    most = suggested_instances(scored)
    return [count for count in reversed(INSTANCES) if count <= most]


def _written(
    program: Program, form: ExportFormat, counts: list[int], target: Target
) -> tuple[str, int]:
    from dataclasses import replace

    from headrace.collectives.export import msccl_xml, mscclpp_json, mscclpp_read
    from headrace.collectives.export.runtimes import oversubscription

    is_xml = form is ExportFormat.MSCCL_XML
    write = msccl_xml.export if is_xml else mscclpp_json.export
    read = msccl_xml.read if is_xml else mscclpp_read.read
    for count in counts[:-1]:
        try:
            sought = replace(target, instances=count, processors=min(PROCESSORS.values()))
            text = write(program, sought)
        except VerificationError:
            continue  # a limit: fewer may do
        if not oversubscription(read(text)[0]):  # all threadblocks have to run at once
            return text, count
    return write(program, replace(target, instances=counts[-1])), counts[-1]


def _program(
    source: Path, collective: Collective | None, total: str | None, root: int
) -> tuple[Program, int, tuple[int, int]]:
    """Return the program, the size that it is meant for and the range of its entry."""
    from headrace.collectives.plan.book import PlanBook
    from headrace.collectives.plan.plan import Plan

    artifact = load_known(source)
    if artifact.kind == "plan-book":
        if collective is None or total is None:
            raise InputError(f"{source}: is a plan book, needs --collective and --size")
        book = PlanBook.from_artifact(artifact, str(source))
        total_bytes = parse_size(total, "--size")
        entry = _entry(book.entries, collective, total_bytes, root)
        if entry is None:
            raise InputError(f"{source}: holds no plan for {collective} from root {root}")
        return entry.plan.program, total_bytes, (entry.from_bytes, (entry.to_bytes or 1) - 1)
    if collective is not None or total is not None or root:
        raise InputError(
            f"{source}: is a {artifact.kind}: --collective, --size and --root choose in books"
        )
    if artifact.kind == "plan":
        plan = Plan.from_artifact(artifact, str(source))
        return plan.program, plan.total_bytes, (0, 0)
    if artifact.kind == "program":
        return Program.from_artifact(artifact, str(source)), 0, (0, 0)
    raise ArtifactError(
        f"{source}: field 'kind' is '{artifact.kind}', needs 'plan', 'plan-book' or 'program'; "
        "'headrace collectives synthesize' makes a plan from a topology"
    )


def _entry(
    entries: "tuple[Entry, ...]", collective: Collective, total_bytes: int, root: int
) -> "Entry | None":
    for entry in entries:
        if (entry.collective, entry.root) == (collective, root) and (
            entry.to_bytes is None or total_bytes < entry.to_bytes
        ):
            return entry
    return None


assert {protocol.value for protocol in Protocol} == set(PROTOCOLS)
assert [name.value for name in RuntimeName] == [STRICTEST, *RUNTIMES]
