"""One rank of a job that shards a model fully; run by test_fsdp.py.

Arguments: a backend, and "cpu", "cuda", "double" for the CPU with payloads staged as a GPU's, or
"resharded" for the checks with other numbers of ranks.
"""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from headrace.compression import CompressionError, Policy, fsdp_hook
from tests.compression import device_double
from tests.compression.states import same

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


def sharded(mesh: Any = None, model: nn.Module | None = None, **options: Any) -> nn.Module:
    model = network() if model is None else model
    for layer in (model[2], model):
        fully_shard(layer, mesh=mesh, **options)
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
        inputs = inputs.to(next(model.parameters()).dtype)
        loss = nn.functional.cross_entropy(model(inputs).float(), targets)
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
    assert not any(part["residuals"] for part in hook.state_dict().values())


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


def reduced_in_16_bits() -> None:
    """reduce_dtype=bfloat16, and parameters of 16 bits, were refused."""
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    fp16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    cases: tuple[Callable[[], nn.Module], ...] = (
        lambda: sharded(mp_policy=bf16),
        lambda: sharded(mp_policy=fp16),
        lambda: sharded(model=network().bfloat16()),
    )
    steps = range(8)
    for make in cases:
        plain = make()
        exact = fsdp_hook(plain, "none")
        first, *_, last = train(plain, steps)
        assert exact.statistics.sent_bytes < 1.1 * exact.statistics.plain_bytes
        for residuals in ("fp32", "bf16") if make is cases[0] else ("fp32",):
            ours = make()
            hook = fsdp_hook(ours, Policy(codec="minmax:4", residuals=residuals, **RULES))
            found = train(ours, steps)
            assert found[-1] < last + 0.1 * first < 1.1 * first, (found, last)
            assert hook.sent_bytes < 0.75 * exact.sent_bytes
            expected = torch.float32 if residuals == "fp32" else torch.bfloat16
            for part in hook.state_dict().values():
                assert {r.dtype for r in part["residuals"].values()} == {expected}


def compression_starts_after_steps() -> None:
    plain, ours = sharded(), sharded()
    hook = fsdp_hook(ours, Policy(codec="minmax:2", **RULES), start_after=3)
    expected, found = train(plain, range(3)), train(ours, range(3))
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-5)
    assert hook.statistics.sent_bytes == hook.statistics.plain_bytes > 0
    assert hook.statistics.steps == 3
    train(ours, range(3, 5))
    assert hook.statistics.sent_bytes < hook.statistics.plain_bytes
    assert hook.statistics.steps == 5
    figures = hook.figures()
    assert figures["saved_bytes"] == figures["plain_bytes"] - figures["sent_bytes"] > 0
    samples = {s.name: s.value for m in hook.metrics().collect() for s in m.samples}
    assert samples["headrace_compression_saved_bytes"] == figures["saved_bytes"]
    assert samples["headrace_compression_waited_seconds_total"] == figures["exposed_s"] > 0


def residuals_are_what_was_not_sent() -> None:
    """Over the ranks, residuals and the ranks' number times the mean are the gradients."""
    for reduced in (torch.float32, torch.bfloat16, torch.float16):
        add_up(reduced, dist.ReduceOp.AVG, 1.0)
        add_up(reduced, dist.ReduceOp.SUM, RANKS)
        add_up(reduced, dist._make_nccl_premul_sum(3.0), 3.0 * RANKS)


def add_up(reduced: torch.dtype, op: Any, factor: float) -> None:
    from headrace.compression.run.reduce_scatter import CompressedReduceScatter

    model = sharded()
    hook = fsdp_hook(model, Policy(codec="minmax:2", one_dimension=True, smallest=1))
    part = hook._parts[""]
    assert isinstance(part, CompressedReduceScatter)
    kept = torch.zeros(RANKS * part._elements, device=DEVICE)
    group = dist.group.WORLD
    assert group is not None
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        given = torch.randn(len(kept), generator=generator)
        for row, elements in part._padding:  # as FSDP does
            given.view(RANKS, -1)[row, elements] = 0.0
        given = given.to(DEVICE, reduced)
        written = torch.empty(part._elements, device=DEVICE, dtype=reduced)
        part(written, given.clone(), group, op)
        mean = written.float() / factor
        total = given.float() + kept
        assert part.residual is not None
        kept = part.residual.reshape(-1).clone()
        sums = torch.stack([total - kept])  # what this rank sent
        dist.all_reduce(sums)
        for row, elements in part._padding:  # no parameter's: nothing is kept of it
            if row == dist.get_rank():
                mean[elements] = sums[0].view(RANKS, -1)[row, elements] = 0.0
        own = sums[0].view(RANKS, -1)[dist.get_rank()]
        assert torch.allclose(own / RANKS, mean, atol=1e-5)


def gradients_are_divided_by_the_models_factor() -> None:
    """It was refused, and replicas divided once more; 1 is for sums over all tokens of a batch."""
    inputs, _ = batch(0, dist.get_rank())
    mesh = init_device_mesh(DEVICE.type, (RANKS, 1), mesh_dim_names=("hosts", "shards"))
    for shards, replicas in ((None, None), (mesh["shards"], mesh["hosts"].get_group())):
        gradients: list[Tensor] = []
        for factor, start_after in ((None, 0), (1.0, 0), (1.0, 1), (float(RANKS), 0)):
            model = sharded(shards)
            fsdp_hook(model, "none", replicas=replicas, start_after=start_after)
            for module in model.modules():
                if factor is not None and isinstance(module, FSDPModule):
                    module.set_gradient_divide_factor(factor)
            model(inputs).square().mean().backward()
            gradient = model[2].weight.grad
            assert isinstance(gradient, DTensor)
            gradients.append(gradient.full_tensor())
        for total in gradients[1:3]:
            torch.testing.assert_close(total, RANKS * gradients[0])
        torch.testing.assert_close(gradients[3], gradients[0])


def not_finite_leaves_residuals() -> None:
    model = sharded()
    hook = fsdp_hook(model, Policy(codec="minmax:4", **RULES))
    train(model, range(3))
    before = hook.state_dict()
    assert all(part["residuals"] for part in before.values())
    inputs, targets = batch(3, dist.get_rank())
    loss = nn.functional.cross_entropy(model(inputs), targets)
    (loss * (float("nan") if dist.get_rank() == 1 else 1.0)).backward()
    for parameter in model.parameters():
        grad = parameter.grad
        assert isinstance(grad, DTensor)
        assert bool(grad.to_local().isnan().all())
    for name, part in hook.state_dict().items():
        assert same(part["residuals"], before[name]["residuals"])


def after_an_overflow_gradients_are_finite_again() -> None:
    """The scale of `sign` overflowed and left an infinite residual: all gradients were NaN then."""
    model = sharded()
    fsdp_hook(model, Policy(codec="sign", **RULES))
    inputs, targets = batch(0, dist.get_rank())
    for factor in (1.0, 2e38, 1.0, 1.0):
        model.zero_grad()
        (factor * nn.functional.cross_entropy(model(inputs), targets)).backward()
    for parameter in model.parameters():
        assert isinstance(parameter.grad, DTensor)
        assert bool(parameter.grad.to_local().isfinite().all())


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


def residuals_follow_the_scale() -> None:
    """Whatever the scales, powers of 2, the weights are those without; resumed ones, too."""
    mesh = init_device_mesh(DEVICE.type, (RANKS, 1), mesh_dim_names=("hosts", "shards"))
    for codec, shards, replicas in (
        ("minmax:2", None, None),
        ("topk:10%", mesh["shards"], mesh["hosts"].get_group()),
    ):
        found: list[Tensor] = []
        for scales in ((1.0, 1.0, 1.0, 1.0), (64.0, 8.0, 256.0, 1.0)):
            scaler = torch.amp.GradScaler(DEVICE.type)
            scaler.scale(torch.ones((), device=DEVICE))  # it has no scale before
            model = sharded(shards)
            options: Any = {"replicas": replicas, "scaler": scaler}
            hook = fsdp_hook(model, Policy(codec=codec, **RULES), **options)
            for step, scale in enumerate(scales):
                scaler.update(scale)
                if step == 2:
                    state, model = model.state_dict(), sharded(shards)
                    model.load_state_dict(state)
                    residuals = hook.state_dict()
                    hook = fsdp_hook(model, Policy(codec=codec, **RULES), **options)
                    hook.load_state_dict(residuals)
                inputs, _ = batch(step, dist.get_rank())
                (scale * model(inputs).square().mean()).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1 / scale)  # type: ignore[arg-type]
                model.zero_grad()
            found.append(weights(model))
        assert torch.equal(*found), codec
    refused(lambda: fsdp_hook(sharded(), "none", scaler=3), "needs a torch.amp.GradScaler")


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


def frozen_parameters_are_left_out() -> None:
    """LoRA: nothing of a module with a frozen parameter was compressed, in silence.

    Replicas refused the states of hooks with other frozen parameters.
    """
    mesh = init_device_mesh(DEVICE.type, (RANKS, 1), mesh_dim_names=("hosts", "shards"))
    for shards, replicas in ((None, None), (mesh["shards"], mesh["hosts"].get_group())):
        model = network()
        for parameter in (*model[0].parameters(), model[2].bias):
            parameter.requires_grad_(False)
        sharded(shards, model)
        hook = fsdp_hook(model, Policy(codec="minmax:4", **RULES), replicas=replicas)
        losses = train(model)
        assert end(losses) < losses[0]
        assert hook.sent_bytes < 0.5 * hook.statistics.plain_bytes
        state = hook.state_dict()
        if replicas is None:
            assert {name for part in state.values() for name in part["residuals"]} == {
                "2.weight",
                "4.weight",
                "4.bias",
            }
        for parameter in model[0].parameters():
            parameter.requires_grad_(True)
        again = fsdp_hook(model, Policy(codec="minmax:4", **RULES), replicas=replicas)
        again.load_state_dict(state)
        train(model, range(2))
        state = again.state_dict()
        assert "0.weight" in state[""]["residuals" if replicas is None else "parameters"]
        hook.load_state_dict(state)
    other_type = nn.Linear(5, 5).double().requires_grad_(False)
    frozen = nn.Sequential(network(), other_type).to(DEVICE)
    fully_shard(frozen)
    fsdp_hook(frozen, "none")


def a_model_that_was_evaluated_is_taken() -> None:
    """It ended in a KeyError: an evaluation leaves the root's parameters whole."""
    model = sharded()
    inputs, _ = batch(0, dist.get_rank())
    with torch.no_grad():
        model(inputs)
    hook = fsdp_hook(model, Policy(codec="minmax:4", **RULES))
    losses = train(model)
    assert end(losses) < 0.8 * losses[0]
    assert {name for part in hook.state_dict().values() for name in part["residuals"]} == {
        name for name, _ in network().named_parameters()
    }


def names_are_those_before_compiling() -> None:
    """States of compiled layers are those of plain ones; layers sharded together count once."""
    model = network()
    for number in (0, 2, 4):
        model[number] = torch.compile(model[number], backend="eager")
    fully_shard([model[2], model[4]])
    fully_shard(model)
    compiled = fsdp_hook(model, Policy(codec="none", except_for=["2._orig_mod.bias"], **RULES))
    train(model, range(1))
    plain = network()
    fully_shard([plain[2], plain[4]])
    fully_shard(plain)
    hook = fsdp_hook(plain, Policy(codec="none", except_for=["2.bias"], **RULES))
    assert repr(hook) == repr(compiled) == "<FsdpHook: none for 2 sharded modules>", compiled
    hook.load_state_dict(compiled.state_dict())


def gradients_of_several_types_have_their_own_codecs() -> None:
    """A bias was quantised in place of a matrix: torch sorts gradients by their types."""
    gradients: list[Tensor] = []
    for hooked in (False, True):
        model = network().bfloat16()
        model[0].bias.grad_dtype = torch.float32
        sharded(model=model)
        if hooked:
            fsdp_hook(model, Policy(codec="minmax:2", except_for=["0.weight"], **RULES))
        inputs, _ = batch(0, dist.get_rank())
        model(inputs.bfloat16()).float().square().mean().backward()
        gradient = model[0].bias.grad
        assert isinstance(gradient, DTensor)
        gradients.append(gradient.full_tensor())
    torch.testing.assert_close(*gradients)


def what_cannot_be_is_refused() -> None:
    for codec, problem in (
        ("topk:1%", "has no encoded shards"),
        ("powersgd:4", "has no encoded shards"),
    ):
        refused(lambda codec=codec: fsdp_hook(sharded(), Policy(codec=codec, **RULES)), problem)
    refused(lambda: fsdp_hook(network(), "none"), "needs fully_shard")
    replicated = network()
    replicate(replicated)
    refused(lambda: fsdp_hook(replicated, "none"), "is replicated, not sharded: needs fully_shard")
    refused(
        lambda: fsdp_hook(sharded(), "none" if dist.get_rank() else "bf16"), "policies of ranks"
    )
    refused(lambda: fsdp_hook(sharded().double(), "none"), "float64, needs one of torch.float32")
    refused(lambda: fsdp_hook(sharded(), "none", start_after=-1), "start_after is -1")
    hook = fsdp_hook(sharded(), "none")
    refused(lambda: hook.load_state_dict({"other": {}}), "state has modules")
    state = hook.state_dict()
    other = {name: {**part, "ranks": 5} for name, part in state.items()}
    refused(lambda: hook.load_state_dict(other), "needs this rank's of as many, or the list of all")
    refused(lambda: hook.load_state_dict([]), "needs this rank's of as many")
    other = {
        name: {**part, "residuals": {"2.weight": torch.zeros(3)}} for name, part in state.items()
    }
    refused(lambda: hook.load_state_dict(other), "residual of '2.weight' has shape (3,), needs")
    replicas = {name: {**part, "shard": 0, "shards": 1} for name, part in state.items()}
    refused(lambda: hook.load_state_dict(replicas), "needs both or neither")


def refused(call: Any, problem: str) -> None:
    try:
        call()
    except CompressionError as error:
        assert problem in str(error), error
    else:
        raise AssertionError(f"not refused: {problem}")


# ---- another number of ranks --------------------------------------------------------------------


class Part:
    """The first ranks of the job in a mesh of replicas and shards, each holding a rank's part."""

    def __init__(self, replicas: int, shards: int, codec: str) -> None:
        self.ranks, self.shards = replicas * shards, shards
        mesh = DeviceMesh(
            "cpu",
            torch.arange(self.ranks).view(replicas, shards),
            mesh_dim_names=("hosts", "shards"),
        )
        self.member = dist.get_rank() < self.ranks
        self.model = network()
        if not self.member:
            return
        for layer in (self.model[2], self.model):
            fully_shard(layer, mesh=mesh["shards"])
        rules = Policy(codec=codec, **RULES)
        group = mesh["hosts"].get_group() if "powersgd" in codec else None
        self.hook = fsdp_hook(self.model, rules, replicas=group)

    def resume(self, given: Tensor, states: list[Any]) -> None:
        """Take over weights, and all ranks' states of the hook."""
        if not self.member:
            return
        with torch.no_grad():
            for parameter, whole in zip(self.model.parameters(), split(given), strict=True):
                own = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
                parameter.copy_(own)
        self.hook.load_state_dict(states)

    def train(self, steps: range) -> list[float]:
        """Return this rank's losses."""
        if not self.member:
            return []
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        losses: list[float] = []
        for step in steps:
            optimizer.zero_grad()
            inputs, targets = batch(step, dist.get_rank())
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    def weights(self) -> Tensor:
        """Return all weights, which all ranks of the job get; equal on those that have them."""
        found = gathered(weights(self.model) if self.member else None)
        assert all(torch.equal(found[0], other) for other in found)
        return found[0]

    def states(self) -> list[Any]:
        return gathered(self.hook.state_dict() if self.member else None)

    def pending(self, states: list[Any]) -> dict[str, Tensor]:
        """Return the mean of the ranks' residuals by parameter; of replicas over these."""
        found: dict[str, Tensor] = {}
        for state in states:
            for part in state.values():
                for name, residual in part.get("residuals", {}).items():
                    found[name] = found.get(name, 0.0) + residual
        replicas = {part["rank"] for state in states for part in state.values()}
        for replica in replicas if "shard" in states[0][""] else ():
            own = [s for s in states if s[""]["rank"] == replica]
            own.sort(key=lambda s: s[""]["shard"])
            for module in own[0]:
                for name in {name for s in own for name in s[module]["parameters"]}:
                    kept = [s[module]["parameters"].get(name, {}).get("residual") for s in own]
                    chunks = network().get_parameter(name).detach().chunk(self.shards)
                    zeros = [torch.zeros_like(chunk) for chunk in chunks]
                    for chunk, residual in zip(zeros, kept, strict=False):
                        if residual is not None:
                            chunk.copy_(residual)
                    found[name] = found.get(name, 0.0) + torch.cat(zeros)
        ranks = states[0][""]["ranks"]
        return {name: residual / ranks for name, residual in found.items()}


def split(flat: Tensor) -> list[Tensor]:
    shapes = [p.shape for p in network().parameters()]
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def gathered(value: Any) -> list[Any]:
    """Return what the ranks have that have something."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return [each for each in found if each is not None]


def resharded(codec: str, meshes: list[tuple[int, int]]) -> None:
    """Every mesh continues from the one before, with the same pending mean of residuals."""
    first, before = Part(*meshes[0], codec), 0
    losses = first.train(range(8))
    for replicas, shards in meshes[1:]:
        states, given = first.states(), first.weights()
        expected = first.pending(states)
        assert expected
        assert any(residual.any() for residual in expected.values())
        second = Part(replicas, shards, codec)
        second.resume(given, states)
        assert torch.equal(second.weights(), given)
        loaded = second.states()
        found = second.pending(loaded)
        assert all(name in found or not expected[name].any() for name in expected)
        for name, residual in expected.items():
            torch.testing.assert_close(
                found.get(name, 0 * residual), residual, rtol=1e-6, atol=1e-7
            )
        assert {part["step"] for state in loaded for part in state.values()} == {8 + before}
        if replicas > 1 and shards == first.shards:
            warm(states, loaded)
        again = Part(replicas, shards, codec)
        again.resume(given, states)
        again.train(range(8, 16))
        losses += second.train(range(8, 16))
        assert torch.equal(second.weights(), again.weights())
        before += 8
        first = second
    if dist.get_rank() == 0:
        assert end(losses) < 0.8 * losses[0], losses


def warm(states: list[Any], loaded: list[Any]) -> None:
    """Warm starts are kept where shards are the same."""
    for module, part in loaded[0].items():
        for name, kept in part["parameters"].items():
            assert same(kept["states"], states[0][module]["parameters"][name]["states"])


def fewer_and_more_ranks() -> None:
    for codec in ("minmax:2", "sign"):
        resharded(codec, [(1, 2), (1, 3), (1, 1)])


def fewer_and_more_replicas_and_shards() -> None:
    resharded("powersgd:1", [(2, 1), (3, 1), (1, 3), (1, 2), (1, 1), (2, 1)])


RESHARDED = [fewer_and_more_ranks, fewer_and_more_replicas_and_shards]
CHECKS = [
    uncompressed_is_the_same,
    quantised_converges_with_fewer_bytes,
    reduced_in_16_bits,
    compression_starts_after_steps,
    residuals_are_what_was_not_sent,
    gradients_are_divided_by_the_models_factor,
    not_finite_leaves_residuals,
    after_an_overflow_gradients_are_finite_again,
    resumed_is_the_same,
    residuals_follow_the_scale,
    replicas_use_any_codec,
    unused_parameters_are_averaged_plainly,
    frozen_parameters_are_left_out,
    a_model_that_was_evaluated_is_taken,
    names_are_those_before_compiling,
    gradients_of_several_types_have_their_own_codecs,
    what_cannot_be_is_refused,
]


STAGED = [residuals_are_what_was_not_sent, not_finite_leaves_residuals]
"""Checks for staged payloads."""


def main() -> None:
    backend, how = sys.argv[1:]
    late = device_double.install() if how == "double" else None
    if backend == "headrace":
        import headrace.torch  # noqa: F401
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    found: dict[str, str] = {}
    for check in {"double": STAGED, "resharded": RESHARDED}.get(how, CHECKS):
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
