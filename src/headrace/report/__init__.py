"""Timelines of plans, and artifacts as self-contained HTML pages."""

from headrace.report.page import Page
from headrace.report.pages import page_of

__all__ = [
    "Page",
    "page_of",
]
