"""Schedules for clusters of equal hosts: between hosts and inside them, pipelined."""
