"""Parser of untrusted XML: no document types, no entities, bounded size and depth."""

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from headrace.errors import TopologyError

MAX_ELEMENTS = 100_000
MAX_DEPTH = 32


@dataclass(slots=True, kw_only=True, eq=False)
class Element:
    """An element: its attributes, its children and the line that it begins in. Text is left out."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def where(self, source: str) -> str:
        """Return "file:line: element 'tag'" for messages."""
        return f"{source}:{self.line}: element '{self.tag}'"

    def text(self, name: str, source: str) -> str:
        """Return an attribute; raises TopologyError if it is missing."""
        if name not in self.attributes:
            raise TopologyError(f"{self.where(source)}: attribute '{name}' is missing")
        return self.attributes[name]

    def integer(
        self,
        name: str,
        source: str,
        *,
        default: int | None = None,
        least: int = 0,
        most: int = 10**9,
    ) -> int:
        """Return an attribute as an integer; raises TopologyError if it is none in the range."""
        if default is not None and name not in self.attributes:
            return default
        text = self.text(name, source)
        try:
            value = int(text) if len(text) < 20 else None
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise TopologyError(
                f"{self.where(source)}: attribute '{name}' is {text[:40]!r}, needs an integer of "
                f"{least} to {most}"
            )
        return value


def parse_xml(content: bytes, source: str) -> Element:
    """Return the outermost element.

    Raises
    ------
    TopologyError : with the line, if it is no XML, has a document type, or is too large or deep.
    """
    parser = expat.ParserCreate()
    reader = _Reader(parser, source)
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    # Without a document type there are no entities, so that nothing can expand or be fetched.
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.EntityDeclHandler = reader.entity
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise TopologyError(
            f"{source}:{error.lineno}: is no XML: {expat.errors.messages[error.code]}"
        ) from error
    except TopologyError:
        raise
    except (LookupError, ValueError) as error:  # of encodings
        raise TopologyError(f"{source}: is no XML: {error}") from error
    if reader.root is None:
        raise TopologyError(f"{source}: has no element, needs 'system'")
    return reader.root


class _Reader:
    def __init__(self, parser: expat.XMLParserType, source: str) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self._parser = parser
        self._source = source

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS:
            self._refuse(f"has more than {MAX_ELEMENTS} elements")
        if len(self._open) >= MAX_DEPTH:
            self._refuse(f"has elements more than {MAX_DEPTH} deep")
        element = Element(tag=tag, attributes=attributes, line=self._parser.CurrentLineNumber)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _tag: str) -> None:
        self._open.pop()

    def doctype(self, *_: object) -> None:
        self._refuse(
            "has a document type (<!DOCTYPE ...>), as files of lstopo and nvidia-smi have: needs "
            "one that NCCL_TOPO_DUMP_FILE made"
        )

    def entity(self, *_: object) -> None:
        self._refuse("declares an entity, which is refused: remove it")

    def _refuse(self, what: str) -> NoReturn:
        raise TopologyError(f"{self._source}:{self._parser.CurrentLineNumber}: {what}")
