"""Launcher of processes by role: on this machine, on a testbed, or started by torchrun."""
