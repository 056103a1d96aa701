"""A Ray cluster's places in the child of a fork, which ends none of its parent's actors."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from headrace.errors import ForkError
from tests.forked import status_of_child


class Ray:
    """Calls of Ray, which is none."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.called.append(name)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    calls = Ray()
    for name, names in {
        "ray": ["init", "kill", "shutdown", "cluster_resources"],
        "ray.exceptions": [],
        "ray.util": [],
        "ray.util.placement_group": [
            "placement_group",
            "placement_group_table",
            "remove_placement_group",
        ],
        "ray.util.scheduling_strategies": ["PlacementGroupSchedulingStrategy"],
    }.items():
        module = ModuleType(name)
        for function in names:
            setattr(module, function, getattr(calls, function))
        monkeypatch.setitem(sys.modules, name, module)
    for error in ("RayError", "RayActorError"):
        setattr(sys.modules["ray.exceptions"], error, type(error, (Exception,), {}))
    own = [name for name in sys.modules if name.startswith("headrace.launch.ray_")]
    for name in own:
        monkeypatch.delitem(sys.modules, name)
    yield calls
    for name in [name for name in sys.modules if name.startswith("headrace.launch.ray_")]:
        del sys.modules[name]


def test_a_child_of_a_fork_ends_no_actor_of_its_parent(ray: Ray) -> None:
    """Its copy of the cluster killed them all, and its calls waited for threads of the parent."""
    from headrace.launch.ray_cluster import RayCluster
    from headrace.launch.ray_process import RayHost

    cluster = RayCluster("auto")
    calls = cluster._calls  # pyright: ignore[reportPrivateUsage]
    cluster._actors = ["an actor"]  # pyright: ignore[reportPrivateUsage]
    host = RayHost(actor=None, calls=calls, address="127.0.0.1")

    def use() -> None:
        uses = (
            lambda: cluster.place([]),
            lambda: cluster.total("CPU"),
            lambda: host.start(["true"]),
            host.free_port,
        )
        for refused in uses:
            with pytest.raises(ForkError, match="the connection to the Ray cluster belongs to"):
                refused()
        cluster.__exit__()
        assert ray.called == []

    assert status_of_child(use) == 0
    cluster.__exit__()
    assert ray.called == ["kill", "shutdown"]
