"""Grouping hosts (PLink 4.1.3) for two-level plans.

In order of use: `distances` of pairs, their `embedding`, `kmeans` within limits of size, `clusters`
ranks candidates, `groups` chooses.
"""
