"""Measurements of examples."""
