"""Shared parts of a running job: steps, agreement of ranks on changes, metrics, records."""
