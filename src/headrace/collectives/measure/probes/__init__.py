"""Probes of a network: programs of the executor, their order, and their records."""
