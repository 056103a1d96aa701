"""What autodoc asks about the names that it documents."""

import enum
from typing import Any

from sphinx.application import Sphinx

from docs.site.docstrings import with_fields
from docs.site.names import Sources
from docs.site.reference import is_constant, told_bases


def connect(app: Sphinx) -> None:
    """Answer the events of autodoc."""
    values = {
        public.full_name: public.docstring for public in Sources.read().public if public.is_value
    }

    def process_docstring(
        _app: Sphinx, kind: str, name: str, _obj: Any, _options: Any, lines: list[str]
    ) -> None:
        if kind == "data":  # a value's own docstring is that of its type
            lines[:] = values.get(name, "").splitlines()
        lines[:] = with_fields(lines)

    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("autodoc-process-bases", _process_bases)


def _process_signature(
    _app: Sphinx,
    _kind: str,
    _name: str,
    documented: Any,
    _options: Any,
    parameters: str | None,
    result: str | None,
) -> tuple[str | None, str | None] | None:
    """Leave out parameters that nobody passes, and write defaults as Python would read them."""
    if isinstance(documented, enum.EnumType) or getattr(documented, "_is_protocol", False):
        return "", None
    return None if parameters is None else (parameters.replace("<factory>", "..."), result)


def _skip_member(
    _app: Sphinx, _kind: str, name: str, member: Any, _skip: bool, options: Any
) -> bool | None:
    """Keep constants and members of enumerations, whose values say it; leave out what Python adds.

    That is the texts of fields of a named tuple, and special methods of other packages.
    """
    if name in (options.exclude_members or ()):
        return True
    if name.startswith("__") and not str(getattr(member, "__module__", "")).startswith("headrace"):
        return True
    if str(getattr(member, "__doc__", "")).startswith("Alias for field number"):
        return True
    return False if is_constant(name, member) else None


def _process_bases(
    _app: Sphinx, _name: str, documented: type, _options: Any, bases: list[Any]
) -> None:
    bases[:] = told_bases(documented)
