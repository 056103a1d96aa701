"""Seeing artifacts: when a plan sends what, and everything as one self-contained HTML page."""
