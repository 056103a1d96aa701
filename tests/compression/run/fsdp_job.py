"""One rank of a job that shards a model fully; run by test_fsdp.py.

Arguments: a backend, and "cpu", "cuda", or "double" for the CPU with payloads staged as a GPU's.
"""

import json
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from headrace.compression import CompressionError, Policy, fsdp_hook
from tests.compression import device_double

RANKS = 2
DEVICE = torch.device("cuda:0" if sys.argv[2:] == ["cuda"] else "cpu")
RULES = {"smallest": 64}
STEPS = 30


def network() -> nn.Module:
    """Return a network that is the same on all ranks; 33 rows do not divide evenly."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(12, 33), nn.Tanh(), nn.Linear(33, 24), nn.Tanh(), nn.Linear(24, 5)
    ).to(DEVICE)


def sharded(mesh: Any = None) -> nn.Module:
    model = network()
    for layer in (model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's share of a step's batch."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(16, 12, generator=generator).to(DEVICE)
    return inputs, inputs[:, :5].argmax(-1)


def train(model: nn.Module, steps: range = range(STEPS), share: int | None = None) -> list[float]:
    """Train on this rank's share of each batch; returns the mean losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses: list[float] = []
    for step in steps:
        optimizer.zero_grad()
        inputs, targets = batch(step, dist.get_rank() if share is None else share)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / RANKS)
    return losses


def weights(model: nn.Module) -> Tensor:
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in whole])


def end(losses: list[float]) -> float:
    return sum(losses[-5:]) / 5


def uncompressed_is_the_same() -> None:
    plain, ours = sharded(), sharded()
    hook = fsdp_hook(ours, "none")
    expected, found = train(plain), train(ours)
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-5)
    assert torch.allclose(weights(ours), weights(plain), rtol=1e-4, atol=1e-6)
    assert all(part["residual"] is None for part in hook.state_dict().values())


def quantised_converges_with_fewer_bytes() -> None:
    plain = sharded()
    exact = fsdp_hook(plain, "none")
    first, *_ = expected = train(plain)
    assert end(expected) < 0.8 * first
    for codec in ("minmax:4", "sign", "fp8", "bf16"):
        ours = sharded()
        hook = fsdp_hook(ours, Policy(codec=codec, **RULES))
        found = train(ours)
        assert end(found) < end(expected) + 0.1 * first, (codec, found[-1], expected[-1])
        assert hook.sent_bytes < exact.sent_bytes * (0.75 if codec == "bf16" else 0.55), codec


def residuals_are_what_was_not_sent() -> None:
    """Over the ranks, residuals and the ranks' number times the mean are the gradients."""
    from headrace.compression.run.fsdp import CompressedReduceScatter

    model = sharded()
    hook = fsdp_hook(model, Policy(codec="minmax:2", one_dimension=True, smallest=1))
    part = hook._parts[""]
    assert isinstance(part, CompressedReduceScatter)
    kept = torch.zeros(RANKS * part._elements, device=DEVICE)
    group = dist.group.WORLD
    assert group is not None
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        given = torch.randn(len(kept), generator=generator).to(DEVICE)
        mean = torch.empty(part._elements, device=DEVICE)
        part(mean, given.clone(), group, dist.ReduceOp.AVG)
        total = given + kept
        assert part.residual is not None
        kept = part.residual.reshape(-1).clone()
        sums = torch.stack([total - kept])  # what this rank sent
        dist.all_reduce(sums)
        own = sums[0].view(RANKS, -1)[dist.get_rank()]
        assert torch.allclose(own / RANKS, mean, atol=1e-5)


def not_finite_leaves_residuals() -> None:
    model = sharded()
    hook = fsdp_hook(model, Policy(codec="minmax:4", **RULES))
    train(model, range(3))
    before = {k: v["residual"].clone() for k, v in hook.state_dict().items()}
    inputs, targets = batch(3, dist.get_rank())
    loss = nn.functional.cross_entropy(model(inputs), targets)
    (loss * (float("nan") if dist.get_rank() == 1 else 1.0)).backward()
    for parameter in model.parameters():
        grad = parameter.grad
        assert isinstance(grad, DTensor)
        assert bool(grad.to_local().isnan().all())
    for name, part in hook.state_dict().items():
        assert torch.equal(part["residual"], before[name])


def resumed_is_the_same() -> None:
    rules = Policy(codec="minmax:2", **RULES)
    whole = sharded()
    fsdp_hook(whole, rules)
    train(whole, range(6))
    first = sharded()
    hook = fsdp_hook(first, rules)
    train(first, range(3))
    again = sharded()
    again.load_state_dict(first.state_dict())
    other = fsdp_hook(again, rules)
    other.load_state_dict(hook.state_dict())
    train(again, range(3, 6))
    assert torch.equal(weights(again), weights(whole))


def replicas_use_any_codec() -> None:
    """Two hosts of one rank each: shards are whole parameters, averaged between the hosts."""
    group = dist.group.WORLD
    assert group is not None
    plain = sharded()
    expected = train(plain)
    mesh = init_device_mesh(DEVICE.type, (RANKS, 1), mesh_dim_names=("hosts", "shards"))
    for codec in ("none", "powersgd:2", "topk:10%", "minmax:4"):
        ours = sharded(mesh["shards"])
        hook = fsdp_hook(ours, Policy(codec=codec, **RULES), replicas=mesh["hosts"].get_group())
        found = train(ours)
        if codec == "none":
            assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4)
        assert end(found) < end(expected) + 0.1 * expected[0], (codec, found[-1], expected[-1])
        assert hook.sent_bytes > 0


def unused_parameters_are_averaged_plainly() -> None:
    model = sharded()
    hook = fsdp_hook(model, Policy(codec="minmax:4", **RULES))
    inputs, _ = batch(0, dist.get_rank())
    model(inputs).sum().backward()
    before = hook.state_dict()[""]["step"]
    model.zero_grad()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    model(inputs).sum().backward()
    assert hook.state_dict()[""]["step"] == before
    assert all(p.grad is not None for p in model[4].parameters())


def what_cannot_be_is_refused() -> None:
    for codec, problem in (
        ("topk:1%", "has no encoded shards"),
        ("powersgd:4", "has no encoded shards"),
    ):
        refused(lambda codec=codec: fsdp_hook(sharded(), Policy(codec=codec, **RULES)), problem)
    refused(lambda: fsdp_hook(network(), "none"), "needs fully_shard")
    refused(lambda: fsdp_hook(sharded(), "none" if dist.get_rank() else "bf16"), "differ")
    refused(lambda: fsdp_hook(sharded().double(), "none"), "float64")
    hook = fsdp_hook(sharded(), "none")
    refused(lambda: hook.load_state_dict({"other": {}}), "state has modules")


def refused(call: Any, problem: str) -> None:
    try:
        call()
    except CompressionError as error:
        assert problem in str(error), error
    else:
        raise AssertionError(f"not refused: {problem}")


CHECKS = [
    uncompressed_is_the_same,
    quantised_converges_with_fewer_bytes,
    residuals_are_what_was_not_sent,
    not_finite_leaves_residuals,
    resumed_is_the_same,
    replicas_use_any_codec,
    unused_parameters_are_averaged_plainly,
    what_cannot_be_is_refused,
]


STAGED = [residuals_are_what_was_not_sent, not_finite_leaves_residuals]
"""Checks for staged payloads."""


def main() -> None:
    backend, device = sys.argv[1:]
    late = device_double.install() if device == "double" else None
    if backend == "headrace":
        import headrace.torch  # noqa: F401
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    found: dict[str, str] = {}
    for check in CHECKS if late is None else STAGED:
        try:
            check()
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    assert late is None or late.copies > 0
    print("RESULTS", json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
