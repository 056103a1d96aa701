"""Shared parts of a running job, for any capability: detection of steps, records of events."""
