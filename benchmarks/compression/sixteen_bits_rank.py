"""One rank of `benchmarks.compression.sixteen_bits`: a network of bfloat16 under several hooks."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed
from headrace.compression import Hook, ddp_hook
from headrace.launch.worker import Receive, Send, run_worker

RANK = 4
START = 2  # torch's PowerSGD cannot begin earlier
WARM_UP = START
COMPARED = 20
LAYERS, WIDTH = 12, 512
BACKWARD_S = 0.1
BUCKET_CAP_MB = 1
_WIDE_MB = 1 << 20


class _Given(torch.autograd.Function):
    """A layer whose backward pass sleeps, and has a gradient that is given."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, token: Tensor, weight: Tensor, gradient: Tensor
    ) -> Tensor:
        ctx.gradient = gradient
        return token + 0 * weight.view(-1)[0].float()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(BACKWARD_S / LAYERS)
        return outputs[0], ctx.gradient.clone(), None


class Network(nn.Module):
    """Matrices of bfloat16."""

    def __init__(self, gradients: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros_like(g) for g in gradients])
        self._gradients = gradients

    def forward(self, token: Tensor) -> Tensor:
        """Return what stands for a loss."""
        for weight, gradient in zip(self.weights, self._gradients, strict=True):
            token = _Given.apply(token, weight, gradient)
        return token.sum()


def given_gradients(rank: int) -> list[Tensor]:
    """Return gradients with singular values that fall, and noise of this rank."""
    common, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + rank)
    gradients: list[Tensor] = []
    for _ in range(LAYERS):
        left = torch.randn(WIDTH, 16, generator=common) * 0.7 ** torch.arange(16)
        matrix = left @ torch.randn(16, WIDTH, generator=common)
        noise = 0.2 * torch.randn(WIDTH, WIDTH, generator=own)
        gradients.append((matrix + noise).bfloat16())
    return gradients


class Arm:
    """A copy of the network with a hook, or none."""

    def __init__(self, name: str, gradients: list[Tensor]) -> None:
        wide = name == "torch powersgd"
        if wide:
            first, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, 1 << 40  # type: ignore[attr-defined]
        self._model = DistributedDataParallel(
            Network(gradients), bucket_cap_mb=_WIDE_MB if wide else BUCKET_CAP_MB
        )
        if wide:
            dist._DEFAULT_FIRST_BUCKET_BYTES = first  # type: ignore[attr-defined]
        made = HOOKS[name](self._model)
        self._hook = made if isinstance(made, Hook) else None
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> float:
        """Take a step; return its milliseconds."""
        token = torch.zeros(1, requires_grad=True)
        dist.barrier()
        began = time.perf_counter()
        self._model(token).backward()
        taken = (time.perf_counter() - began) * 1e3
        self.gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        self._model.zero_grad()
        return taken

    def distance(self, exact: list[Tensor]) -> float:
        """Return how far the sum of some steps' means is from the exact one, relatively.

        The sum, as that is what training receives: what error feedback leaves out of one mean it
        adds to later ones, so that single means differ by more from step to step than codecs do.
        """
        sums = [torch.zeros_like(mean) for mean in exact]
        for _ in range(COMPARED):
            self.step()
            for total, gradient in zip(sums, self.gradients, strict=True):
                total.add_(gradient, alpha=1 / COMPARED)
        off = sum(
            float(torch.dist(total, mean)) ** 2 for total, mean in zip(sums, exact, strict=True)
        )
        return math.sqrt(off / sum(float(mean.norm()) ** 2 for mean in exact))

    @property
    def sent_bytes(self) -> float:
        """Bytes of the last step, where the hook counts them; else 0."""
        return 0.0 if self._hook is None else self._hook.last.sent_bytes


def _torch_powersgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=START)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS: dict[str, Callable[[DistributedDataParallel], object]] = {
    "plain": lambda _model: None,
    "torch bf16": lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "headrace bf16": lambda model: ddp_hook(model, "bf16"),
    "torch powersgd": _torch_powersgd,
    "headrace powersgd": lambda model: ddp_hook(model, f"powersgd:{RANK}+bf16", start_after=START),
}


def work(receive: Receive, send: Send) -> None:
    """Answer one request after the other."""
    torch.set_num_threads(1)
    asked = receive()
    dist.init_process_group(asked["backend"])
    gradients = given_gradients(dist.get_rank())
    exact = [gradient.float() for gradient in gradients]
    for mean in exact:
        dist.all_reduce(mean)
        mean.div_(dist.get_world_size())
    arms = {name: Arm(name, gradients) for name in asked["arms"]}
    send(opened=True)
    while (asked := receive())["do"] != "end":
        arm = arms[asked["arm"]]
        if asked["do"] == "distance":
            send(distance=arm.distance(exact))
        else:
            taken = [arm.step() for _ in range(asked["count"])]
            send(ms=taken, sent_bytes=arm.sent_bytes)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_worker(work)
