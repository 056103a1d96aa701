"""Registry of artifact kinds, and the capabilities, both found by name.

A package directly below `headrace` registers its kinds in a module ``kinds``, as a tuple ``KINDS``,
and other tools' formats that it can check as ``FORMATS``. A package with commands has a package
``cli`` and is a capability (docs/adding-a-capability.md). Nothing here imports a capability by its
name, so that one is added without a change to shared code.
"""

import codecs
import importlib
import json
import pkgutil
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import headrace
from headrace.errors import ArtifactError, InputError
from headrace.files import refuse_pipe

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.artifact import Artifact
    from headrace.artifact_value import ArtifactValue

Function = TypeVar("Function")


_ENVELOPE = re.compile(rb'"format"\s*:\s*"headrace-artifact"')
"""In an artifact's first line, before its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKind:
    """A kind of artifact, and the functions of the generic verbs, `deferred` if heavy to import.

    Attributes
    ----------
    name, schema : of the artifact's envelope.
    summary : one line for error texts and pages: the content of such a file.
    documentation : page below ``docs/`` that describes the format.
    load : returns the value that the artifact holds; raises ArtifactError naming the source.
    show : tables of a loaded value (True: all rows); None: the artifact's head is printed.
    verify : proves the artifact again, yields lines; raises VerificationError. None: no proof.
    page : `report.page.Page` of a loaded value, read from the named source; None: no page.
    plain : returns the artifact of a plain JSON file, which users may write; None: no such form.
    plain_fields : names that tell such a file from other JSON: it has all of them.
    """

    name: str
    schema: int
    summary: str
    documentation: str
    load: "Callable[[Artifact, str], Any]"
    show: "Callable[[Any, bool], Iterable[RenderableType]] | None" = None
    verify: "Callable[[Artifact, str], Iterator[str]] | None" = None
    page: Callable[[Any, str], Any] | None = None
    plain: "Callable[[Path], Artifact] | None" = None
    plain_fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFormat:
    """A format of another tool, recognised by its beginning, that ``headrace verify`` checks.

    Attributes
    ----------
    name : in messages, such as ``MSCCL XML``.
    begins : first character of such a file.
    fields : of JSON: names that tell it from other JSON: it has all of them.
    verify : proves or refutes the file and yields the findings; raises VerificationError.
    """

    name: str
    begins: str
    verify: Callable[[Path], Iterator[str]]
    fields: frozenset[str] = frozenset()


def deferred(name: str) -> Callable[..., Any]:
    """Return a function that imports ``module:function`` when it is called, and calls it."""
    return partial(_call, name)


def _call(name: str, *arguments: Any) -> Any:
    return pkgutil.resolve_name(name)(*arguments)


def kind_of(
    value: "type[ArtifactValue]",
    *,
    summary: str,
    documentation: str,
    show: str | None = None,
    verify: str | None = None,
    page: str | None = None,
) -> ArtifactKind:
    """Return the registration of a class of values; functions as ``module:function``, `deferred`.

    Name, schema, loading and plain JSON are the class's own.
    """
    from headrace.artifact_value import PlainArtifactValue  # it loads NumPy, see `load_artifact`

    fields = value.PLAIN_FIELDS if issubclass(value, PlainArtifactValue) else frozenset[str]()
    return ArtifactKind(
        name=value.KIND,
        schema=value.SCHEMA,
        summary=summary,
        documentation=documentation,
        load=value.from_artifact,
        show=deferred(show) if show else None,
        verify=deferred(verify) if verify else None,
        page=deferred(page) if page else None,
        plain=(lambda path: value.load(path).to_artifact()) if fields else None,
        plain_fields=fields,
    )


def packages_with(module: str) -> list[str]:
    """Return the packages directly below `headrace` that hold `module`, without importing them."""
    names: list[str] = []
    for folder in headrace.__path__:
        for package in pkgutil.iter_modules([folder]):
            inner = pkgutil.iter_modules([str(Path(folder) / package.name)])
            if package.ispkg and any(submodule.name == module for submodule in inner):
                names.append(package.name)
    return sorted(names)


def capabilities() -> list[str]:
    """Return the names of the capabilities."""
    return packages_with("cli")


def registered_commands() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every capability, and then ``cli``, with the variables of its commands' package.

    The package's file is run alone: an import would load the capability's facade, too.
    """
    for name in [*capabilities(), ""]:
        for folder in headrace.__path__:
            if (file := Path(folder, name, "cli", "__init__.py")).exists():
                yield name or "cli", runpy.run_path(str(file))


@cache
def artifact_kinds() -> dict[str, ArtifactKind]:
    """Return every registered kind by its name.

    Raises
    ------
    ValueError : if two packages register the same name.
    """
    kinds: dict[str, ArtifactKind] = {}
    for module in _registering():
        for kind in module.KINDS:
            if kind.name in kinds:
                raise ValueError(f"{module.__name__}: the artifact kind '{kind.name}' stands twice")
            kinds[kind.name] = kind
    return kinds


def kind_names(entry: Callable[[ArtifactKind], object] = lambda kind: kind.name) -> str:
    """Return the names of the kinds whose registration has an `entry`, for help texts."""
    return ", ".join(name for name, kind in artifact_kinds().items() if entry(kind) is not None)


@cache
def foreign_formats() -> tuple[ForeignFormat, ...]:
    """Return the registered formats of other tools."""
    return tuple(form for module in _registering() for form in getattr(module, "FORMATS", ()))


def load_artifact(path: Path) -> "Artifact":
    """Read an artifact, or a kind's plain JSON as one.

    Raises
    ------
    ArtifactError : if it is none, or another version of headrace wrote it; names the command for a
        file that begins as another tool's.
    """
    if (form := foreign_format_of(path)) is not None:
        if (read := _plain_reader(path)) is not None:
            return read(path)
        require_fields(path, form)
        raise ArtifactError(
            f"{path}: looks like {form.name} and is no headrace artifact; headrace verify checks it"
        )
    return load_known(path)


def load_known(path: Path) -> "Artifact":
    """Read an artifact; one of a registered kind has the version of the layout that is known.

    Raises
    ------
    ArtifactError : if it is none, or another version of headrace wrote it.
    """
    import headrace.artifact as artifact_io  # it loads Arrow, and the settings load this module

    artifact = artifact_io.load(path)
    if (kind := artifact_kinds().get(artifact.kind)) is not None:
        artifact.require_schema(kind.schema, str(path))
    return artifact


def require_fields(path: Path, form: ForeignFormat) -> None:
    """Raise ArtifactError, which says what it is instead, for JSON without the format's fields."""
    try:
        document = json.loads(path.read_bytes()) if form.fields else None
    except (OSError, ValueError, RecursionError):
        return  # the format's own reader reports the error
    if not isinstance(document, dict) or form.fields <= {*document}:
        return
    for names, description in _OTHER_JSON.items():
        if {*names} <= {*document}:
            raise ArtifactError(f"{path}: is {description}")
    shown = ", ".join(f"'{name[:40]}'" for name in list(document)[:6]) or "none"
    raise ArtifactError(
        f"{path}: is no headrace artifact, but JSON with the fields {shown}; needs an artifact, or "
        f"{form.name} with {', '.join(sorted(form.fields))}"
    )


_OTHER_JSON = {
    ("claim", "bars", "tables"): "a benchmark's result: headrace show and report take it",
    ("traceEvents",): "a profiler's trace: open it in ui.perfetto.dev or chrome://tracing",
}
"""By fields: files of users that are neither artifacts nor another tool's plans."""


def _plain_reader(path: Path) -> "Callable[[Path], Artifact] | None":
    """Return the reader of the kind whose plain JSON a file is; None if it is no kind's."""
    with suppress(ValueError, RecursionError):  # a foreign format's own reader reports the error
        document = json.loads(path.read_bytes())
        for kind in artifact_kinds().values():
            if (
                kind.plain is not None
                and isinstance(document, dict)
                and kind.plain_fields <= {*document}
            ):
                return kind.plain
    return None


def foreign_format_of(file: Path) -> ForeignFormat | None:
    """Return the other tool's format that a file begins as; None for an artifact.

    Raises
    ------
    InputError : if it begins as neither, or is a pipe.
    """
    refuse_pipe(file)  # the rest is read with the reader of its format
    try:
        with file.open("rb") as stream:
            start = stream.read(4096)
    except OSError:
        return None  # the artifact's reader reports the error
    if _ENVELOPE.search(start):
        return None
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    for form in foreign_formats():
        if text.startswith(form.begins.encode()):
            return form
    beginning = (
        f"begins with {text[:12].decode('ascii', 'backslashreplace')!r}" if text else "is empty"
    )
    forms = " or ".join(f"{form.name} (begins with '{form.begins}')" for form in foreign_formats())
    raise InputError(f"{file}: {beginning}; needs a headrace artifact, {forms}")


def function_of(
    artifact: "Artifact", source: str, entry: Callable[[ArtifactKind], Function | None], needs: str
) -> Function:
    """Return a function of the artifact's kind: the `entry` of its registration.

    Parameters
    ----------
    needs : for the error text, with ``{}`` for the names of the kinds that have the function.

    Raises
    ------
    ArtifactError : if the kind is not known or has no such function.
    """
    functions = {name: entry(kind) for name, kind in artifact_kinds().items()}
    function = functions.get(artifact.kind)
    if function is None:
        able = ", ".join(
            name for name, entry_function in functions.items() if entry_function is not None
        )
        raise ArtifactError(f"{source}: field 'kind' is '{artifact.kind}', {needs.format(able)}")
    return function


def _registering() -> list[ModuleType]:
    return [importlib.import_module(f"headrace.{name}.kinds") for name in packages_with("kinds")]
