"""A script's process as a trainer: it joins the job that its environment names, or starts one."""

import hmac
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from headrace.embeddings.data.files import FORMATS
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.job.job_processes import (
    JobHosts,
    JobOptions,
    JobProcesses,
    RoleHost,
)
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.trainers.cacher_client import CacherClient
from headrace.embeddings.run.trainers.connections import JobCommits, TrainerConnections
from headrace.embeddings.settings import EmbeddingSettings
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.executor.connect.addresses import (
    FAMILIES,
    addresses_towards,
    family_of,
    host_of,
    interface_addresses,
    is_loopback,
)
from headrace.executor.pacing import pace
from headrace.job.store import answering, wait_for
from headrace.launch.roles import start_local
from headrace.launch.torchrun import torchrun_store

_KEY = "headrace/embeddings/trainer"

_FOLDER = Path.cwd()
"""Of the script's start: paths of its command are in it, wherever the script has gone by `fit`."""


def join_job(description: JobDescription) -> TrainerConnections:
    """Join the job of ``headrace embeddings run``, whose trainers have the same description.

    Outside of one, a server, a reader and a cacher of a job of one trainer are started. Data of the
    script's own are read by another process of the script.

    Raises
    ------
    EmbeddingError : the description differs from another trainer's; there are several trainers, and
        no cacher; or encryption is asked for, which calls between hosts do not have.
    CommunicationError : a process of the job is not there, or failed.
    """
    settings = EmbeddingSettings.from_environment()
    trainer, trainers = settings.rank or 0, settings.world_size or 1
    with ExitStack() as ends:
        address, secret = _cacher(settings, trainers, description, ends)
        cacher = ends.enter_context(
            CacherClient(
                address,
                trainer=trainer,
                trainers=trainers,
                secret=secret,
                deadline_s=settings.deadline_s,
            )
        )
        executor = Executor(
            trainer,
            trainers,
            host=_own_host(settings, host_of(address)),
            secret=hmac.digest(secret.encode(), b"trainers", "sha256").hex(),
            tls=settings.tls,
        )
        ends.callback(executor.close)
        job = cacher.join(description)
        addresses = _addresses_of_all(executor, settings.deadline_s, ends)
        executor.connect(addresses, settings.deadline_s)
        pace(executor, addresses, settings)
        servers = ServerConnections(
            job.servers, description, trainer, secret=secret, deadline_s=settings.deadline_s
        )
        ends.callback(servers.close)
        return TrainerConnections(
            executor=executor,
            servers=servers,
            epoch=cacher.epoch,
            prefetch=job.prefetch,
            deadline_s=settings.deadline_s,
            ideal=job.ideal,
            commits=None
            if job.folder is None
            else JobCommits(
                folder=job.folder, start=job.start, mark=job.mark, report=cacher.commit
            ),
            close=ends.pop_all().close,
        )


def _cacher(
    settings: EmbeddingSettings, trainers: int, description: JobDescription, ends: ExitStack
) -> tuple[str, str]:
    """Return the address of the cacher, and the job's secret."""
    if settings.cacher is not None and settings.secret is not None:
        cacher_host = host_of(settings.cacher)
        if settings.tls and not (_is_numeric(cacher_host) and is_loopback(cacher_host)):
            raise EmbeddingError(
                "HEADRACE_TLS is on, but the calls of embeddings are not encrypted: set it to off "
                "where the network between the hosts is trusted"
            )
        return settings.cacher, settings.secret
    if trainers > 1:
        raise EmbeddingError(
            f"there are {trainers} trainers without a cacher: start the script by "
            "'headrace embeddings run PLAN -- SCRIPT' instead"
        )
    options = JobOptions(
        cache_bytes=settings.cache_bytes,
        adapt=settings.adapt,
        adapt_log=settings.adapt_log,
        deadline_s=settings.deadline_s,
        silence_s=settings.silence_s,
    )
    own = description.data.get("format") not in FORMATS
    if own and not hasattr(sys.modules["__main__"], "__file__"):
        raise EmbeddingError(
            "data of a script's own are read by another process of the script: needs a script, "
            "not an interactive session"
        )
    read_with = sys.orig_argv if own else None
    host = RoleHost(start=partial(start_local, cwd=_FOLDER))
    hosts = JobHosts(servers=(host,), readers=(host,), cacher=host)
    processes = ends.enter_context(JobProcesses(options, hosts, read_with=read_with))
    return processes.address, processes.secret


def _own_host(settings: EmbeddingSettings, cacher: str) -> str:
    """Return the address of this host that the other trainers connect to."""
    if settings.paced_address is not None:
        return settings.paced_address
    if settings.socket_interface is None:
        addresses = addresses_towards(cacher)
    else:
        addresses = interface_addresses(settings.socket_interface)
    families = [family_of(cacher)] if _is_numeric(cacher) else FAMILIES
    for family in families:
        if family in addresses:
            return addresses[family]
    names = " or ".join(f"IPv{family}" for family in families)
    where = settings.socket_interface or f"a route to the cacher at {cacher}"
    raise CommunicationError(f"this host has no address of {names} for trainers on {where}")


def _is_numeric(host: str) -> bool:
    """Return whether a host is an address; else it is a name."""
    with suppress(ValueError):
        return bool(family_of(host))
    return False


def _addresses_of_all(executor: Executor, deadline_s: float, ends: ExitStack) -> list[str]:
    """Return the addresses of all trainers, by torch's rendezvous."""
    if executor.ranks == 1:
        return [executor.address]
    store, _, _ = torchrun_store()
    ends.callback(_keep, store)
    what = f"trainer {executor.rank}: rendezvous"
    keys = [f"{_KEY}/{rank}" for rank in range(executor.ranks)]
    with answering(store, what):
        store.set(keys[executor.rank], executor.address)
    if not wait_for(store, keys, deadline_s, what):
        raise CommunicationError(f"{what}: not all trainers came within {deadline_s:g} s")
    with answering(store, what):
        return [store.get(key).decode() for key in keys]


def _keep(store: Any) -> None:
    """Keep trainer 0's store until the end: others may still read from it."""
    del store
