"""The cacher's process, whose decisions follow the job."""

from pathlib import Path

from headrace.embeddings.adapt.agent import JobAdaptation
from headrace.embeddings.run.cacher.cacher_options import CacherServerOptions
from headrace.embeddings.run.cacher.cacher_server import CacherServer
from headrace.embeddings.run.process import RoleSettings
from headrace.launch.worker import Send


def serve(settings: RoleSettings, send: Send) -> CacherServer:
    """Serve a job's trainers."""
    options = CacherServerOptions.of(settings.options)
    if not options.adapt:
        return CacherServer(settings, send)
    follower = JobAdaptation(
        options.trainers,
        most_lookahead=options.lookahead,
        equal_shares=options.equal_shares,
        log_path=None if options.adapt_log is None else Path(options.adapt_log),
    )
    return CacherServer(settings, send, follower)
