"""A job on a testbed: one process per host, with the environment that torch.distributed reads."""

from collections.abc import Mapping, Sequence
from functools import partial

from headrace.launch.job import OnLine, run_job
from headrace.launch.roles import Role
from headrace.settings import child_environment
from headrace.testbed.testbed import Testbed


def rank_environment(testbed: Testbed, order: Sequence[int], rank: int) -> dict[str, str]:
    """Return RANK, WORLD_SIZE and so on for a rank; `order[rank]` is the index of its host.

    The hosts share this machine's processors: like torchrun, one thread a rank by default.
    """
    threads = {} if "OMP_NUM_THREADS" in child_environment() else {"OMP_NUM_THREADS": "1"}
    return {
        **threads,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(order)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": testbed.hosts[order[0]].address,
        "MASTER_PORT": str(testbed.record.master_port),
    }


def rank_roles(
    testbed: Testbed,
    argv: Sequence[str],
    order: Sequence[int],
    env: Mapping[str, str | None] | None = None,
) -> list[Role]:
    """Return the processes of a job that runs `argv` as one process per rank, by rank.

    Parameters
    ----------
    order : the host index of every rank; see `TestbedSpec.order`.
    env : changes to every rank's environment.
    """
    hosts = [testbed.hosts[index].name for index in order]
    return [
        Role(
            name=f"rank {rank} on {host}",
            argv=argv,
            start=partial(testbed.popen, host),
            env={
                "PYTHONUNBUFFERED": "1",
                **rank_environment(testbed, order, rank),
                **(env or {}),
            },
        )
        for rank, host in enumerate(hosts)
    ]


def run_ranks(
    testbed: Testbed,
    argv: Sequence[str],
    order: Sequence[int],
    *,
    env: Mapping[str, str | None] | None = None,
    on_line: OnLine | None = None,
    timeout_s: float | None = None,
    grace_s: float = 2.0,
) -> list[int]:
    """Run `argv` as one process per rank, as `headrace.launch.run_job` does; see `rank_roles`."""
    roles = rank_roles(testbed, argv, order, env)
    return run_job(roles, on_line=on_line, timeout_s=timeout_s, grace_s=grace_s)
