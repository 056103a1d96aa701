"""A process on a node of Ray: its output, whatever the locale here."""

import subprocess
import sys

from headrace.settings import child_environment
from tests.waiting import JOB_S

SCRIPT = r"""
import sys
import threading
from subprocess import PIPE
from types import ModuleType, SimpleNamespace

names = {
    "ray": (),
    "ray.exceptions": ("RayError", "RayActorError"),
    "ray.util": (),
    "ray.util.placement_group": (
        "placement_group", "placement_group_table", "remove_placement_group"
    ),
    "ray.util.scheduling_strategies": ("PlacementGroupSchedulingStrategy",),
}
for module, members in names.items():
    sys.modules[module] = ModuleType(module)
    for member in members:
        setattr(sys.modules[module], member, type(member, (Exception,), {}))

from headrace.launch.node_processes import END, OUTPUT
from headrace.launch.ray_process import RayHost

def in_thread(target):
    threading.Thread(target=target, daemon=True).start()

def method(reply):
    return SimpleNamespace(remote=lambda *_: reply)

calls = SimpleNamespace(answer=lambda reply: reply, check=lambda: None, in_thread=in_thread)
actor = SimpleNamespace(start=method(None), events=method([(OUTPUT, "caf\xe9"), (END, 0)]))
process = RayHost(actor=actor, calls=calls, address="127.0.0.1").start(["true"], stdout=PIPE)
print(ascii(process.stdout.read()), process.wait())
"""


def test_lines_have_any_characters_in_any_locale() -> None:
    """The first that the locale lacks ended the output, and the process counted as killed."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=child_environment(locale),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=True,
    )
    assert done.stdout == "'caf\\xe9\\n' 0\n"
