"""Launcher of processes by role: on this machine, on a testbed, or started by torchrun."""

from headrace.launch.job import run_job
from headrace.launch.roles import Message, Role, Roles, start_local
from headrace.launch.torchrun import torchrun_store
from headrace.launch.worker import run_worker

__all__ = [
    "Message",
    "Role",
    "Roles",
    "run_job",
    "run_worker",
    "start_local",
    "torchrun_store",
]
