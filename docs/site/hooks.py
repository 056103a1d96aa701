"""What autodoc asks about the names that it documents."""

import enum
from typing import Any

from sphinx.application import Sphinx

from docs.site.docstrings import with_texts_below
from docs.site.names import Sources
from docs.site.reference import told_bases

_BEFORE_NAPOLEON = 400


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
        lines[:] = with_texts_below(lines)

    app.connect("autodoc-process-docstring", process_docstring, _BEFORE_NAPOLEON)
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("autodoc-process-bases", _process_bases)


def _skip_member(
    _app: Sphinx, _kind: str, _name: str, member: Any, _skip: bool, _options: Any
) -> bool | None:
    """Keep the members of an enumeration, which have no docstrings."""
    return False if isinstance(member, enum.Enum) else None


def _process_bases(
    _app: Sphinx, _name: str, documented: type, _options: Any, bases: list[Any]
) -> None:
    bases[:] = told_bases(documented)
