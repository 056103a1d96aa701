"""Seeing artifacts: when a plan sends what, and everything as one self-contained HTML page."""

from headrace.report.pages import page_of

__all__ = ["page_of"]
