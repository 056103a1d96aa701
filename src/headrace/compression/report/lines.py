"""Styles of lines in charts of codecs."""

LINE_DASHES = ("solid", "dash", "dot")
"""In turn, with Plotly's ten colours: neither equal curves nor the eleventh hide one another."""
