"""The cacher's process, whose decisions follow the job."""

from pathlib import Path

from headrace.embeddings.adapt.agent import JobAdaptation
from headrace.embeddings.run.cacher_server import CacherServer
from headrace.embeddings.run.process import RoleSettings
from headrace.launch.worker import Send


def serve(settings: RoleSettings, send: Send) -> CacherServer:
    """Serve a job's trainers.

    The options may have "adapt", whether decisions follow the job (true unless it is there),
    "equal_shares", and "adapt_log", the path of a file for changes.
    """
    options = settings.options
    if not options.get("adapt", True):
        return CacherServer(settings, send)
    path: str | None = options.get("adapt_log")
    follower = JobAdaptation(
        options["trainers"],
        most_lookahead=options.get("lookahead"),
        equal_shares=options.get("equal_shares", False),
        log_path=None if path is None else Path(path),
    )
    return CacherServer(settings, send, follower)
