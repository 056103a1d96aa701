"""Sphinx's configuration of the site; `docs.site.build` names it."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import headrace
from docs.site import hooks

project = "headrace"
author = "The headrace authors"
version = release = headrace.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# GitHub's anchors of headings, and formulas between dollars
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False

default_role = "py:obj"  # a name between single backticks in a docstring leads to its entry
add_module_names = False
autodoc_default_options = {
    "members": True,
    "special-members": "__call__, __enter__, __getitem__, __iter__",
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"headrace {release}"
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"  # browsers draw it: no script and no font from elsewhere


def _write_math(translator: Any, node: nodes.Element, *, block: bool) -> None:
    translator.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer of formulas, and the answers to autodoc's events."""
    hooks.connect(app)
    app.add_html_math_renderer(
        "mathml",
        (lambda translator, node: _write_math(translator, node, block=False), None),
        (lambda translator, node: _write_math(translator, node, block=True), None),
    )
