"""Launcher of processes by role: on this machine, on a testbed, or started by torchrun."""

from typing import TYPE_CHECKING

from headrace.facades import deferred_names

if TYPE_CHECKING:
    from headrace.launch.job import OnLine, run_job
    from headrace.launch.process import ProcessGroup
    from headrace.launch.roles import Message, Role, Roles, Start, Streams, start_local
    from headrace.launch.worker import Receive, Send, run_worker

__all__ = [
    "Message",
    "OnLine",
    "ProcessGroup",
    "Receive",
    "Role",
    "Roles",
    "Send",
    "Start",
    "Streams",
    "run_job",
    "run_worker",
    "start_local",
]

_MODULES = {
    "Message": "roles",
    "OnLine": "job",
    "ProcessGroup": "process",
    "Receive": "worker",
    "Role": "roles",
    "Roles": "roles",
    "Send": "worker",
    "Start": "roles",
    "Streams": "roles",
    "run_job": "job",
    "run_worker": "worker",
    "start_local": "roles",
}
__getattr__, __dir__ = deferred_names(__name__, __all__, _MODULES)
