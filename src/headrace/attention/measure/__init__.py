"""Measures how alike a model's heads are, and what a plan loses, on text."""
