"""One rank of the jobs of section `auto`: plain DDP, fixed codecs and the automatic choice."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.compression.model_rank import stepper
from benchmarks.compression.networks import EMULATED, training
from headrace.compression import Auto, ddp_hook
from headrace.compression.adapt.automatic import AutomaticHook
from headrace.launch.worker import Receive, Send, run_worker

AUTO, PLAIN = "auto", "plain"


def work(receive: Receive, send: Send) -> None:
    """Answer one request after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    arms: dict[str, Arm] = {}
    while (asked := receive())["do"] != "end":
        if asked["do"] == "open":
            for arm in arms.values():
                arm.close()
            arms = _arms(asked)
            send(arms=list(arms))
        else:
            arm = arms[asked["arm"]]
            dist.barrier()
            send(**arm.run(asked["count"]))
    dist.barrier()
    dist.destroy_process_group()


class Arm:
    """One way to train: a copy of the model under DDP, with its hook."""

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], policy: Any
    ) -> None:
        parallel, self._step = stepper(model, loss)
        self._hook = None if policy is None else ddp_hook(parallel, policy)

    def run(self, count: int) -> dict[str, Any]:
        """Take steps, and return their milliseconds, and the levels in force after each."""
        auto = self._hook if isinstance(self._hook, AutomaticHook) else None
        if auto is not None:
            auto.pause()  # the others' steps in between are no step of this training loop
        taken: list[float] = []
        levels: list[str] = []
        for _ in range(count):
            taken.append(self._step())
            if auto is not None:
                levels.append(auto.level)
        trying = auto is not None and bool(auto.state.trials)
        events = [] if auto is None else [dict(row) for row in auto.records.events]
        return {"ms": taken, "levels": levels, "trying": trying, "events": events[-20:]}

    def close(self) -> None:
        """End the hook."""
        if self._hook is not None:
            self._hook.close()


def _arms(asked: dict[str, Any]) -> dict[str, Arm]:
    levels = asked["levels"]
    policies: dict[str, Any] = {PLAIN: None}
    policies |= {level: level for level in levels if level != "none"}
    policies[AUTO] = Auto(levels=levels)
    found: dict[str, Arm] = {}
    for name, policy in policies.items():
        model, loss = training(asked["network"], EMULATED, asked["seconds"])
        found[name] = Arm(model, loss, policy)
    return found


if __name__ == "__main__":
    run_worker(work)
