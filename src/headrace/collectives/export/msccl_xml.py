"""MSCCL's XML (TACCL-EF): written for the executor's parser, read from any tool.

The parser of the executor is simple: attributes are separated by one space, there is no
declaration, a node is on one line. Files are written so. They are read with expat, and anything
beyond elements and attributes is refused: a document type, entities, processing instructions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from headrace.collectives.errors import MscclError
from headrace.collectives.export.algorithm import (
    NOWHERE,
    READS_SRC,
    WRITES_DST,
    Algorithm,
    BlockStep,
    Buffer,
    Finding,
    Gpu,
    Kind,
    Location,
    Threadblock,
    Wait,
)
from headrace.collectives.export.emission import StreamEvent
from headrace.collectives.export.limits import MAX_TEXT, check_limits
from headrace.collectives.export.pause import collection_paused
from headrace.collectives.export.prove import Verdict, examine, read_bounded
from headrace.collectives.export.runtimes import XML, Runtime, extremes, refused, runtime_of
from headrace.collectives.export.threadblocks import PROTOCOLS, Lowering, Target, renumbered
from headrace.collectives.program import Program
from headrace.errors import InputError, VerificationError

MAX_FILE_BYTES = 64 << 20
MAX_ELEMENTS = 1 << 20
MAX_NUMBER = (1 << 63) - 1

_BUFFERS: Mapping[str, Buffer] = {"i": "i", "o": "o", "s": "s"}
_INSIDE = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}
"""Element -> its parent element."""


@collection_paused()
def export(program: Program, target: Target | None = None) -> str:
    """Return `program` as MSCCL XML, proven from the text alone.

    Threadblocks that are too long for the target's runtime are split.

    Raises
    ------
    ProgramError : if the program cannot be lowered, or the runtime does not read XML.
    VerificationError : if the program is wrong, or its threadblocks break a limit of the runtime.
    """
    target = target or Target()
    runtime = runtime_of(target.runtime, XML)
    algorithm = fitted_algorithm(program, target, runtime)
    text = write(algorithm)
    relies = () if target.buffered else ("buffering",)
    fatal = refused(extremes(algorithm), runtime)
    fatal += [f for f in check_limits(algorithm) if f.fatal]  # fast; the proof is not
    fatal = fatal or [f for f in verify_text(text).findings if f.fatal or f.rule in relies]
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        raise VerificationError(
            f"MSCCL XML of {program.demand.collective} for {runtime.name}: {fatal[0]}{more}: "
            "plan with fewer chunks, or export fewer instances"
        )
    return text


def fitted_algorithm(program: Program, target: Target, runtime: Runtime) -> Algorithm:
    """Return the threadblocks of `program`, split and numbered for `runtime` if possible.

    Raises
    ------
    ProgramError, VerificationError : see `Lowering.of`.
    """
    lowering = Lowering.of(program, target)
    algorithm = lowering.algorithm()
    if any(len(tb.steps) > runtime.steps for gpu in algorithm.gpus for tb in gpu.threadblocks):
        algorithm = lowering.algorithm(_weight, runtime.steps - 1)  # its first step waits, too
    return renumbered(algorithm, runtime.awaited)


def _weight(
    _event: StreamEvent, _following: StreamEvent | None, acquired: int, _released: int
) -> int:
    return max(1, acquired)


def write(algorithm: Algorithm) -> str:
    """Return `algorithm` as XML for the executor's parser."""
    lines = [
        _open(
            "algo",
            name=algorithm.name,
            proto=algorithm.protocol,
            nchannels=algorithm.channels,
            nchunksperloop=algorithm.chunks_per_loop,
            ngpus=len(algorithm.gpus),
            coll=algorithm.collective,
            inplace=int(algorithm.in_place),
            outofplace=int(algorithm.out_of_place),
            minBytes=algorithm.min_bytes,
            maxBytes=algorithm.max_bytes,
        )
    ]
    for gpu in algorithm.gpus:
        lines.append(
            "  "
            + _open(
                "gpu",
                id=gpu.id,
                i_chunks=gpu.input_chunks,
                o_chunks=gpu.output_chunks,
                s_chunks=gpu.scratch_chunks,
            )
        )
        for tb in gpu.threadblocks:
            lines.append(
                "    " + _open("tb", id=tb.id, send=tb.send, recv=tb.recv, chan=tb.channel)
            )
            lines += [f"      {_step(number, step)}" for number, step in enumerate(tb.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _open(element: str, /, **attributes: object) -> str:
    text = " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"<{element} {text}>"


def _step(number: int, step: BlockStep) -> str:
    # The parser needs both buffers, whatever the type: the other end stands in.
    src = step.src if step.kind in READS_SRC else step.dst
    dst = step.dst if step.kind in WRITES_DST else step.src
    wait = step.depends or Wait(-1, -1)
    node = _open(
        "step",
        s=number,
        type=step.kind.value,
        srcbuf=src.buffer,
        srcoff=src.offset,
        dstbuf=dst.buffer,
        dstoff=dst.offset,
        cnt=step.count,
        depid=wait.threadblock,
        deps=wait.step,
        hasdep=int(step.flagged),
    )
    return f"{node[:-1]}/>"


def verify_file(path: str | Path) -> Verdict:
    """Prove or refute the collective that a file claims to be; raises MscclError."""
    return verify_text(read_bounded(path, MAX_FILE_BYTES, MscclError), str(path))


@collection_paused()
def verify_text(text: str | bytes, source: str = "MSCCL XML") -> Verdict:
    """Prove or refute the collective that MSCCL XML claims to be; raises MscclError."""
    algorithm, findings = read(text, source)
    return examine(algorithm, findings)


def read(text: str | bytes, source: str = "MSCCL XML") -> tuple[Algorithm, list[Finding]]:
    """Read MSCCL XML: the algorithm, and the format rules that the text itself breaks.

    `examine` proves the algorithm.

    Raises
    ------
    MscclError : naming the line, for what is not XML of the expected elements and attributes.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_FILE_BYTES:
        raise MscclError(f"{source}: has {len(data)} bytes, needs at most {MAX_FILE_BYTES}")
    root, findings = _Reader(source).run(data)
    return _algorithm(root, source, findings), findings


@dataclass(slots=True)
class _Node:
    name: str
    line: int
    attributes: Mapping[str, str]
    children: list["_Node"] = field(default_factory=list["_Node"])


class _Reader:
    """Parser to a tree of known elements; refuses anything beyond them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: _Node | None = None
        self.open: list[_Node] = []
        self.unknown = 0  # depth inside elements that the executor ignores
        self.count = 0
        self.findings: list[Finding] = []
        parser = self.parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.EntityDeclHandler = self._refuse_entity
        parser.ProcessingInstructionHandler = self._refuse_instruction

    def run(self, data: bytes) -> tuple[_Node, list[Finding]]:
        try:
            self.parser.Parse(data, True)
        except expat.ExpatError as error:
            raise MscclError(
                f"{self.source}: line {error.lineno}: not well-formed XML "
                f"({expat.ErrorString(error.code)})"
            ) from error
        except (LookupError, ValueError, UnicodeError) as error:
            if isinstance(error, InputError):
                raise
            raise MscclError(f"{self.source}: cannot be decoded ({error}); needs UTF-8") from error
        if self.root is None:
            raise self._error("has no algo element")
        return self.root, self.findings

    def _error(self, message: str) -> MscclError:
        return MscclError(f"{self.source}: line {self.parser.CurrentLineNumber}: {message}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise self._error(f"more than {MAX_ELEMENTS} elements")
        for key, value in attributes.items():
            if max(len(key), len(value)) > MAX_TEXT:
                self.findings.append(
                    Finding(
                        rule="limit",
                        message=f"line {self.parser.CurrentLineNumber}: {name} has an attribute of "
                        f"{max(len(key), len(value))} characters, needs at most {MAX_TEXT}",
                    )
                )
        parent = self.open[-1].name if self.open else ""
        if self.unknown or _INSIDE.get(name) != parent:
            if not self.open:
                raise self._error(f"the outermost element is {name[:40]!r}, needs algo")
            if name in _INSIDE and not self.unknown:
                raise self._error(f"{name} in {parent}, needs to be in {_INSIDE[name] or 'none'}")
            self.unknown += 1
            return
        node = _Node(name, self.parser.CurrentLineNumber, attributes)
        if self.open:
            self.open[-1].children.append(node)
        else:
            self.root = node
        self.open.append(node)

    def _end(self, _name: str) -> None:
        if self.unknown:
            self.unknown -= 1
        else:
            self.open.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            raise self._error(f"text {text.strip()[:40]!r} between elements; needs none")

    def _refuse_doctype(self, *_: object) -> None:
        raise self._error("has a document type; needs plain elements only")

    def _refuse_entity(self, *_: object) -> None:
        raise self._error("declares an entity; needs plain elements only")

    def _refuse_instruction(self, *_: object) -> None:
        raise self._error("has a processing instruction; needs plain elements only")


class _Fields:
    """Typed access to the attributes of one element."""

    def __init__(self, node: _Node, source: str) -> None:
        self.node, self.source = node, source

    def error(self, message: str) -> MscclError:
        return MscclError(f"{self.source}: line {self.node.line}: {self.node.name}: {message}")

    def text(self, name: str) -> str:
        if name not in self.node.attributes:
            raise self.error(f"attribute '{name}' is missing")
        return self.node.attributes[name]

    def number(self, name: str) -> int:
        text = self.text(name)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            raise self.error(f"attribute '{name}' is {text[:40]!r}, needs an integer")
        value = int(text)
        if abs(value) > MAX_NUMBER:
            raise self.error(f"attribute '{name}' is {value}, needs 64 bits at most")
        return value

    def flag(self, name: str) -> bool:
        value = self.number(name)
        if value not in (0, 1):
            raise self.error(f"attribute '{name}' is {value}, needs 0 or 1")
        return bool(value)

    def buffer(self, name: str) -> Buffer:
        text = self.text(name)
        if text not in _BUFFERS:
            raise self.error(f"attribute '{name}' is {text[:40]!r}, needs i, o or s")
        return _BUFFERS[text]


def _algorithm(node: _Node, source: str, findings: list[Finding]) -> Algorithm:
    fields = _Fields(node, source)
    protocol = fields.text("proto")
    if protocol not in PROTOCOLS:
        raise fields.error(f"attribute 'proto' is {protocol[:40]!r}, needs one of {PROTOCOLS}")
    gpus = [_gpu(child, source, findings) for child in node.children]
    if (claimed := fields.number("ngpus")) != len(gpus):
        raise fields.error(
            f"attribute 'ngpus' is {claimed}, but there are {len(gpus)} gpu elements"
        )
    for name in ("inplace", "outofplace"):
        fields.flag(name)
    return Algorithm(
        name=node.attributes.get("name", ""),
        protocol=protocol,
        channels=fields.number("nchannels"),
        chunks_per_loop=fields.number("nchunksperloop"),
        collective=fields.text("coll"),
        in_place=fields.flag("inplace"),
        out_of_place=fields.flag("outofplace"),
        min_bytes=fields.number("minBytes"),
        max_bytes=fields.number("maxBytes"),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.id)),
    )


def _gpu(node: _Node, source: str, findings: list[Finding]) -> Gpu:
    fields = _Fields(node, source)
    gpu = fields.number("id")
    return Gpu(
        id=gpu,
        input_chunks=fields.number("i_chunks"),
        output_chunks=fields.number("o_chunks"),
        scratch_chunks=fields.number("s_chunks"),
        threadblocks=tuple(_threadblock(child, gpu, source, findings) for child in node.children),
    )


def _threadblock(node: _Node, gpu: int, source: str, findings: list[Finding]) -> Threadblock:
    fields = _Fields(node, source)
    threadblock = fields.number("id")
    steps: list[BlockStep] = []
    for number, child in enumerate(node.children):
        steps.append(_read_step(child, source))
        if (claimed := _Fields(child, source).number("s")) != number:
            findings.append(
                Finding(
                    rule="format",
                    message=f"line {child.line}: s is {claimed}, but it is step {number}: the "
                    "executor counts, and dependencies would mean other steps",
                    gpu=gpu,
                    threadblock=threadblock,
                    step=number,
                )
            )
    return Threadblock(
        id=threadblock,
        send=fields.number("send"),
        recv=fields.number("recv"),
        channel=fields.number("chan"),
        steps=tuple(steps),
    )


def _read_step(node: _Node, source: str) -> BlockStep:
    fields = _Fields(node, source)
    kind = fields.text("type")
    if kind not in tuple(Kind):
        raise fields.error(f"attribute 'type' is {kind[:40]!r}, needs one of {', '.join(Kind)}")
    src = Location(fields.buffer("srcbuf"), fields.number("srcoff"))
    dst = Location(fields.buffer("dstbuf"), fields.number("dstoff"))
    on, step = fields.number("depid"), fields.number("deps")
    count, flagged = fields.number("cnt"), fields.flag("hasdep")
    return BlockStep(
        kind=Kind(kind),
        src=src if kind in READS_SRC else NOWHERE,
        dst=dst if kind in WRITES_DST else NOWHERE,
        count=0 if kind == Kind.NOP else count,
        depends=Wait(on, step) if on >= 0 else None,
        flagged=flagged,
    )
