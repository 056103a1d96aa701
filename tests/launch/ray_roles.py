"""Roles on the nodes of a Ray cluster: ``ray_roles.py ADDRESS PURPOSE``, on one of them.

It writes what the tests of `headrace.launch.ray_cluster` assert, as JSON.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.embeddings.run.job.ray_hosts import share_gpus
from headrace.errors import CommunicationError
from headrace.launch.ray_cluster import RayCluster
from headrace.launch.ray_process import RayHost
from headrace.launch.roles import LINES, Role, Roles
from tests.launch.test_roles import answer
from tests.waiting import HANG_S

WORKER = Path(__file__).with_name("worker.py")
CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


def workers(places: Sequence[RayHost]) -> Roles[int]:
    argv = [sys.executable, str(WORKER)]
    return Roles(
        {
            key: Role(name=f"role {key}", argv=argv, start=place.start)
            for key, place in enumerate(places)
        }
    )


def first_messages(roles: Roles[int], count: int) -> list[int]:
    """Return the ids of the workers' processes."""
    pids: dict[int, int] = {}
    while len(pids) < count:
        key, message = roles.receive(HANG_S)
        assert message is not None, roles.last_lines(key)
        pids[key] = message["pid"]
    return [pids[key] for key in range(count)]


def messages(places: Sequence[RayHost]) -> dict[str, Any]:
    """Exchange messages with workers on all nodes, and let them end in several ways."""
    told: dict[str, Any] = {}
    with workers(places) as roles:
        pids = first_messages(roles, len(places))
        told["namespaces"] = len({str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids})
        text = "x" * 3_000_000  # beyond any pipe
        told["echoes"] = answer(roles, 0, {"do": "echo", "text": text}) == {"text": text}
        roles.send(0, {"do": "die", "code": 7})
        told["died"] = [*roles.receive(HANG_S), roles.exit_code(0), *roles.last_lines(0)]
        os.kill(pids[1], signal.SIGSEGV)
        told["killed"] = [*roles.receive(HANG_S), roles.exit_code(1)]
        roles.restart(1)
        pid = answer(roles, 1)["pid"]
        told["restarted"] = pid != pids[1]
        child = answer(roles, 1, {"do": "have a deaf child"})["child"]
    return told | {"pids": [*pids, pid, child]}


def lines(places: Sequence[RayHost]) -> dict[str, Any]:
    """Run commands whose output is their lines."""
    script = "echo $WORD; echo e >&2; pwd; exit 3"
    commands = {"lines": ["sh", "-c", script], "missing": ["no-such-program"]}
    roles = {
        name: Role(name=name, argv=argv, env={"WORD": "word"}, start=place.start, streams=LINES)
        for (name, argv), place in zip(commands.items(), places, strict=False)
    }
    written: dict[str, list[str]] = {name: [] for name in commands}
    with Roles(roles) as started:
        while None in [started.exit_code(name) for name in commands]:
            name, line = started.receive_line(HANG_S)
            written[name] += [] if line is None else [line]
        return {name: (written[name], started.exit_code(name)) for name in commands}


def tell(cluster: RayCluster) -> dict[str, Any]:
    places = cluster.place([CPU] * 6)
    told = {
        "addresses": [place.address for place in places],
        "ports": [place.free_port() for place in places],
        **messages(places),
        **lines(places),
    }
    trainers = cluster.place([GPU, GPU, CPU])
    told["gpus"] = [place.gpus for place in trainers]
    told["shared"] = [place.env["CUDA_VISIBLE_DEVICES"] for place in share_gpus(trainers[:2])]
    try:
        cluster.place([CPU] * 20)
    except CommunicationError as error:
        told["too many"] = str(error)
    return told


def lose(cluster: RayCluster, address: str) -> tuple[int | None, str, list[str]]:
    """Return how a role on the node ends that is removed when standard input ends.

    And the nodes of other places for as many processes as the rest has processors.
    """
    places = cluster.place([CPU] * 3)
    index = [place.address for place in places].index(address)
    with workers(places[index : index + 1]) as roles:
        print(json.dumps(first_messages(roles, 1)[0]), flush=True)
        sys.stdin.read()
        assert roles.receive(HANG_S) == (0, None)
        end = roles.exit_code(0), roles.last_lines(0)[-1]
    return *end, [place.address for place in cluster.place([CPU] * 6)]


def main(address: str, purpose: str, *arguments: str) -> None:
    with RayCluster(address) as cluster:
        if purpose == "tell":
            told: Any = tell(cluster)
        elif purpose == "lose":
            told = lose(cluster, *arguments)
        else:
            with workers(cluster.place([CPU] * 3)) as roles:
                print(json.dumps(first_messages(roles, 3)), flush=True)
                time.sleep(HANG_S)
            return
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
