"""MSCCL's XML (TACCL-EF): written for the executor's parser, read from any tool.

The parser of the executor is simple: attributes are separated by one space, there is no
declaration, a node is on one line. Files are written so. They are read with expat, and anything
beyond elements and attributes is refused: a document type, entities, processing instructions.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from headrace.collectives.errors import MscclError, ProgramError
from headrace.collectives.export.algorithm import (
    NOWHERE,
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
from headrace.collectives.export.prove import Verdict, examine, require_none
from headrace.collectives.export.runtimes import XML, Runtime, extremes, refused, runtime_of
from headrace.collectives.export.threadblocks import PROTOCOLS, Lowering, Target, renumbered
from headrace.collectives.program import Program
from headrace.errors import InputError
from headrace.files import read_bytes

MAX_FILE_BYTES = 64 << 20
MAX_ELEMENTS = 1 << 20
MAX_NUMBER = (1 << 63) - 1
_DEFAULT_MAX_BYTES = 1 << 27
"""Largest size that microsoft/msccl takes a file for which does not say."""

_BUFFERS: Mapping[str, Buffer] = {"i": "i", "o": "o", "s": "s"}
_GPU = {
    "id": "id",
    "i_chunks": "input_chunks",
    "o_chunks": "output_chunks",
    "s_chunks": "scratch_chunks",
}
_THREADBLOCK = {"id": "id", "send": "send", "recv": "recv", "chan": "channel"}
"""Attribute -> field of `Gpu` and `Threadblock`."""
_OPTIONAL = ("outofplace", "minBytes", "maxBytes")
"""Attributes of algo that microsoft/msccl does without, and msccl-executor-nccl does not."""
_INSIDE = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}
"""Element -> its parent element."""
_PLAIN = re.compile(
    rb"""(?s:[ \r\n]++|<!--.*?-->|</[^\s/>]++>"""
    rb"""|<[^\s=<>"'/!?]++(?: ++(?:[^\s=<>"'/]++="[^"]*+")?+)*+/?>)*+"""
)
"""Text that the runtimes' parsers read (`xmlGetNode` and `xmlGetToken` of NCCL's graph/xml.cc)."""


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
    require_none(fatal, f"MSCCL XML of {program.demand.collective} for {runtime.name}")
    return text


def fitted_algorithm(program: Program, target: Target, runtime: Runtime) -> Algorithm:
    """Return the threadblocks of `program`, split and numbered for `runtime` if possible.

    Raises
    ------
    ProgramError, VerificationError : see `Lowering.of`.
    """
    lowering = Lowering.of(program, target)
    collective = program.demand.collective
    if collective not in runtime.collectives:
        raise ProgramError(
            f"runtime {runtime.name} has no {collective}, needs one of "
            f"{', '.join(runtime.collectives)}"
        )
    algorithm = lowering.algorithm()
    if any(len(tb.steps) > runtime.steps for gpu in algorithm.gpus for tb in gpu.threadblocks):
        algorithm = lowering.algorithm(_weight, runtime.steps - 1)  # its first step waits, too
    named = replace(algorithm, collective=runtime.collectives[collective])
    return renumbered(named, runtime.awaited)


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
            maxBytes=algorithm.max_bytes or MAX_NUMBER,  # 0 is no size at all for microsoft/msccl
        )
    ]
    for gpu in algorithm.gpus:
        lines.append("  " + _open("gpu", **_attributes(gpu, _GPU)))
        for tb in gpu.threadblocks:
            lines.append("    " + _open("tb", **_attributes(tb, _THREADBLOCK)))
            lines += [f"      {_step(number, step)}" for number, step in enumerate(tb.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _attributes(value: Gpu | Threadblock, names: Mapping[str, str]) -> dict[str, int]:
    return {attribute: getattr(value, name) for attribute, name in names.items()}


def _open(element: str, /, **attributes: object) -> str:
    text = " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"<{element} {text}>"


def _step(number: int, step: BlockStep) -> str:
    # The parser needs both buffers, whatever the type: the other end stands in.
    src = step.src if step.kind.reads else step.dst
    dst = step.dst if step.kind.writes else step.src
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
    return verify_text(read_bytes(path, MscclError, MAX_FILE_BYTES), str(path))


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
    if line := _unread_line(data):
        text = f"line {line}: no runtime reads this: needs every element on one line, attributes "
        text += "in double quotes behind spaces, no tabs and no declaration"
        findings.append(Finding("limit", text))
    return _algorithm(root, findings), findings


def _unread_line(data: bytes) -> int:
    """Return the number of the first line that is not `_PLAIN`; 0 if there is none."""
    plain = _PLAIN.match(data)
    end = 0 if plain is None else plain.end()
    return data.count(b"\n", 0, end) + 1 if end < len(data) else 0


@dataclass(slots=True)
class _Node:
    """An element, with typed access to its attributes."""

    source: str
    name: str
    line: int
    attributes: Mapping[str, str]
    children: list["_Node"] = field(default_factory=list["_Node"])

    def error(self, message: str) -> MscclError:
        return MscclError(f"{self.source}: line {self.line}: {self.name}: {message}")

    def wrong(self, name: str, needs: str) -> MscclError:
        text = self.attributes[name][:40]
        return self.error(f"attribute '{name}' is {text!r}, needs {needs}")

    def text(self, name: str) -> str:
        if name not in self.attributes:
            raise self.error(f"attribute '{name}' is missing")
        return self.attributes[name]

    def number(self, name: str) -> int:
        text = self.text(name)
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            raise self.wrong(name, "an integer")
        value = int(text)
        if abs(value) > MAX_NUMBER:
            raise self.error(f"attribute '{name}' is {value}, needs 64 bits at most")
        return value

    def flag(self, name: str) -> bool:
        value = self.number(name)
        if value not in (0, 1):
            raise self.error(f"attribute '{name}' is {value}, needs 0 or 1")
        return bool(value)

    def location(self, buffer: str, offset: str) -> Location:
        buffer_text = self.text(buffer)
        if buffer_text not in _BUFFERS:
            raise self.wrong(buffer, "i, o or s")
        return Location(_BUFFERS[buffer_text], self.number(offset))

    def numbers(self, names: Mapping[str, str]) -> dict[str, int]:
        return {name: self.number(attribute) for attribute, name in names.items()}


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
        parser.StartDoctypeDeclHandler = self._refuse("has a document type")
        parser.EntityDeclHandler = self._refuse("declares an entity")
        parser.ProcessingInstructionHandler = self._refuse("has a processing instruction")

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
            if (length := max(len(key), len(value))) > MAX_TEXT:
                text = f"line {self.parser.CurrentLineNumber}: {name} has an attribute of {length} "
                self.findings.append(
                    Finding("limit", f"{text}characters, needs at most {MAX_TEXT}")
                )
        parent = self.open[-1].name if self.open else ""
        if self.unknown or _INSIDE.get(name) != parent:
            if not self.open:
                raise self._error(f"the outermost element is {name[:40]!r}, needs algo")
            if name in _INSIDE and not self.unknown:
                raise self._error(f"{name} in {parent}, needs to be in {_INSIDE[name] or 'none'}")
            self.unknown += 1
            return
        node = _Node(self.source, name, self.parser.CurrentLineNumber, attributes)
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

    def _refuse(self, what: str) -> Callable[..., None]:
        def refuse(*_: object) -> None:
            raise self._error(f"{what}; needs plain elements only")

        return refuse


def _algorithm(node: _Node, findings: list[Finding]) -> Algorithm:
    if node.text("proto") not in PROTOCOLS:
        raise node.wrong("proto", f"one of {PROTOCOLS}")
    gpus = [_gpu(child, findings) for child in node.children]
    if (claimed := node.number("ngpus")) != len(gpus):
        raise node.error(f"attribute 'ngpus' is {claimed}, but there are {len(gpus)} gpu elements")
    for name in _OPTIONAL:
        if name not in node.attributes:
            text = f"attribute '{name}' is missing: refused by msccl-executor-nccl"
            findings.append(Finding("limit", text, fatal=False))
    in_place = node.flag("inplace")
    most = node.number("maxBytes") if "maxBytes" in node.attributes else _DEFAULT_MAX_BYTES
    return Algorithm(
        name=node.attributes.get("name", ""),
        protocol=node.text("proto"),
        in_place=in_place,
        out_of_place=node.flag("outofplace") if "outofplace" in node.attributes else not in_place,
        channels=node.number("nchannels"),
        chunks_per_loop=node.number("nchunksperloop"),
        collective=node.text("coll"),
        min_bytes=node.number("minBytes") if "minBytes" in node.attributes else 0,
        max_bytes=0 if most == MAX_NUMBER else most,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.id)),
    )


def _gpu(node: _Node, findings: list[Finding]) -> Gpu:
    numbers = node.numbers(_GPU)
    blocks = [_threadblock(child, numbers["id"], findings) for child in node.children]
    return Gpu(**numbers, threadblocks=tuple(blocks))


def _threadblock(node: _Node, gpu: int, findings: list[Finding]) -> Threadblock:
    numbers = node.numbers(_THREADBLOCK)
    for number, child in enumerate(node.children):
        if (claimed := child.number("s")) != number:
            text = f"line {child.line}: s is {claimed}, but it is step {number}: the executor "
            text += "counts, and dependencies would mean other steps"
            findings.append(Finding("format", text, gpu, numbers["id"], number))
    return Threadblock(**numbers, steps=tuple(map(_read_step, node.children)))


def _read_step(node: _Node) -> BlockStep:
    if node.text("type") not in tuple(Kind):
        raise node.wrong("type", f"one of {', '.join(Kind)}")
    kind = Kind(node.text("type"))
    src, dst = node.location("srcbuf", "srcoff"), node.location("dstbuf", "dstoff")
    wait = Wait(node.number("depid"), node.number("deps"))
    count, flagged = node.number("cnt"), node.flag("hasdep")
    return BlockStep(
        kind=kind,
        src=src if kind.reads else NOWHERE,
        dst=dst if kind.writes else NOWHERE,
        count=0 if kind is Kind.NOP else count,
        depends=wait if wait.threadblock >= 0 else None,
        flagged=flagged,
    )
