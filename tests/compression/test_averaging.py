"""Averaging among ranks that are objects of one process."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import lockstep, run_together
from headrace.compression.codecs.sparse import MOMENTUM
from headrace.compression.codecs.table import CODECS
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.saved_states import residual_weights
from tests.compression.states import same

SHAPES = {"a.weight": (70, 40), "a.bias": (40,), "b.weight": (30, 40, 3), "norm": (5,)}
SPECS = [str(CodecSpec.parse(family)) for family in CODECS]
KEEPING = [s for s in SPECS if CodecSpec.parse(s).traits.feedback]


def averagers(policy: Policy | str, ranks: int) -> list[Averager]:
    return [Averager(policy, SHAPES, rank=rank, ranks=ranks) for rank in range(ranks)]


def gradients(seed: int, rank: int, scale: float = 1.0) -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return [
        (name, scale * torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()
    ]


def run_step(
    group: Sequence[Averager], given: Sequence[Sequence[tuple[str, Tensor]]]
) -> list[dict[str, Tensor]]:
    run_together([one.average(own) for one, own in zip(group, given, strict=True)])
    return [dict(own) for own in given]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_means_are_equal_on_all_ranks_and_what_is_not_sent_is_kept(spec: str, ranks: int) -> None:
    group = averagers(spec, ranks)
    feeds = CodecSpec.parse(spec).traits.feedback
    for step in range(4):
        given = [gradients(step, rank) for rank in range(ranks)]
        before = [dict(copy.deepcopy(own)) for own in given]
        kept = [{name: one.residual(name) for name in SHAPES} for one in group]
        means = run_step(group, given)
        assert all(one.step == step + 1 and one.finite for one in group)
        for name in SHAPES:
            assert all(torch.equal(mean[name], means[0][name]) for mean in means)
            total = sum(b[name] + k[name] for b, k in zip(before, kept, strict=True))
            assert isinstance(total, Tensor)
            if feeds and spec != "sign" and "dgc" not in spec:  # a vote, and momentum
                left = sum(one.residual(name) for one in group)
                torch.testing.assert_close(left + ranks * means[0][name], total, rtol=0, atol=1e-4)
            if name in ("a.bias", "norm") or spec == "none":
                torch.testing.assert_close(means[0][name], total / ranks, rtol=0, atol=1e-5)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", SPECS)
def test_sixteen_bits_what_is_rounded_off_the_mean_is_kept(spec: str, dtype: torch.dtype) -> None:
    """Residuals in float32 and the means, of 16 bits, add up to the gradients."""
    group, feeds = averagers(spec, 3), CodecSpec.parse(spec).traits.feedback
    for step in range(3):
        given = [[(n, g.to(dtype)) for n, g in gradients(step, rank)] for rank in range(3)]
        before = [{name: g.float() for name, g in own} for own in given]
        kept = [{name: one.residual(name) for name in SHAPES} for one in group]
        means = run_step(group, given)
        for name in SHAPES:
            assert all(torch.equal(mean[name], means[0][name]) for mean in means)
            assert means[0][name].dtype == dtype
            total = sum(b[name] + k[name] for b, k in zip(before, kept, strict=True))
            assert isinstance(total, Tensor)
            if name in ("a.bias", "norm"):  # summed in 16 bits
                torch.testing.assert_close(means[0][name].float(), total / 3, rtol=0.02, atol=0.02)
            elif feeds and spec != "sign" and "dgc" not in spec:
                left = sum(one.residual(name) for one in group)
                found = left + 3 * means[0][name].float()
                torch.testing.assert_close(found, total, rtol=0, atol=1e-4)


@pytest.mark.parametrize("spec", ["minmax:4", "topk:5%", "powersgd:2", "dgc:5%"])
def test_residuals_of_16_bits_are_near_those_of_float32_and_loaded_as_either(spec: str) -> None:
    narrow, wide = averagers(Policy(codec=spec, residuals="bf16"), 2), averagers(spec, 2)
    for step in range(3):
        for group in (narrow, wide):
            run_step(group, [gradients(step, rank) for rank in range(2)])
    for name in ("a.weight", "b.weight"):
        assert narrow[0].state_dict()["parameters"][name]["residual"].dtype == torch.bfloat16
        error = narrow[0].residual(name) - wide[0].residual(name)
        assert 0 < float(error.norm()) < 0.5 * float(wide[0].residual(name).norm())
    saved = copy.deepcopy(narrow[0].state_dict())
    wide[0].load_state_dict(saved)
    assert wide[0].state_dict()["parameters"]["a.weight"]["residual"].dtype == torch.float32
    assert torch.equal(wide[0].residual("a.weight"), narrow[0].residual("a.weight"))
    narrow[1].load_state_dict([one.state_dict() for one in wide])
    before = copy.deepcopy(narrow[1].state_dict()["parameters"])
    bad = [gradients(5, rank, scale=float("inf") if rank else 1.0) for rank in range(2)]
    run_step(narrow, bad)
    assert same(before, narrow[1].state_dict()["parameters"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_mean_beyond_float16_leaves_finite_residuals(dtype: torch.dtype) -> None:
    """It is infinite in the gradient, which a scaler skips; the residual must not be."""
    group = averagers("minmax:4", 2)
    for rank in range(2):
        group[rank].load_state_dict(
            {**group[rank].state_dict(), "parameters": {
                "a.weight": {"residual": torch.full(SHAPES["a.weight"], 1e5), "states": {}}
            }}
        )  # fmt: skip
    given = [[(n, g.to(dtype)) for n, g in gradients(0, rank)] for rank in range(2)]
    means = run_step(group, given)
    assert bool(means[0]["a.weight"].isfinite().all()) == (dtype == torch.float32)
    assert all(one.residual("a.weight").isfinite().all() for one in group)


@pytest.mark.parametrize("residuals", ["fp32", "bf16"])
@pytest.mark.parametrize("spec", KEEPING)
def test_after_an_overflow_means_are_finite_again(spec: str, residuals: str) -> None:
    """A codec's own overflow left infinite residuals: every later step was skipped, for ever.

    A gradient scaler doubles its scale until gradients are near float32's largest.
    """
    group = averagers(Policy(codec=spec, residuals=residuals), 2)
    finite: list[bool] = []
    for step in range(8):
        given = [gradients(step, rank, 1e38 if step == 1 else 1.0) for rank in range(2)]
        given = [[(name, g.clamp(-3e38, 3e38)) for name, g in own] for own in given]
        means = run_step(group, given)
        for name in SHAPES:
            torch.testing.assert_close(
                means[1][name], means[0][name], rtol=0, atol=0, equal_nan=True
            )
        finite.append(all(bool(mean.isfinite().all()) for mean in means[0].values()))
        if not finite[-1]:  # as a scaler does
            for one in group:
                one.rescale(0.5)
    assert finite[0]
    assert any(finite[2:])


@pytest.mark.parametrize("spec", KEEPING)
def test_a_step_that_is_not_finite_on_one_rank_is_nan_on_all_and_changes_nothing(spec: str) -> None:
    group = averagers(spec, 3)
    run_step(group, [gradients(0, rank) for rank in range(3)])
    for name, value in (("b.weight", torch.nan), ("a.weight", -torch.inf), ("a.bias", torch.inf)):
        before = copy.deepcopy([one.state_dict()["parameters"] for one in group])
        given = [gradients(1, rank) for rank in range(3)]
        dict(given[1])[name].view(-1)[3] = value
        means = run_step(group, given)
        for mean in means:
            assert not mean[name].isfinite().all()
        assert not any(one.finite for one in group)
        assert same(before, [one.state_dict()["parameters"] for one in group])
    means = run_step(group, [gradients(2, rank) for rank in range(3)])
    assert all(value.isfinite().all() for mean in means for value in mean.values())


@pytest.mark.parametrize("spec", KEEPING)
def test_a_step_that_fails_between_its_exchanges_changes_nothing(spec: str) -> None:
    group = averagers(spec, 2)
    run_step(group, [gradients(0, rank) for rank in range(2)])
    before = copy.deepcopy([one.state_dict()["parameters"] for one in group])
    for done in range(3):  # exchanges that are complete before one fails
        given = [gradients(1, rank) for rank in range(2)]
        running = [one.average(own) for one, own in zip(group, given, strict=True)]
        left = [4 * done]

        def fail(_rank: int, _request: object, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise ConnectionError

        try:
            run_together(running, fail)
        except ConnectionError:
            for one in running:
                one.close()
            assert same(before, [one.state_dict()["parameters"] for one in group])
            assert not any(one.torn for one in group)
        else:
            before = copy.deepcopy([one.state_dict()["parameters"] for one in group])


@pytest.mark.parametrize("spec", KEEPING)
def test_buckets_make_no_difference(spec: str) -> None:
    whole, parts = averagers(spec, 2), averagers(spec, 2)
    for step in range(3):
        given = [gradients(step, rank) for rank in range(2)]
        other = copy.deepcopy(given)
        run_step(whole, given)
        for bucket, last in (([3, 2], False), ([1], False), ([0], True)):
            run_together(
                [
                    lockstep(one.add([own[i] for i in bucket], last=last))
                    for one, own in zip(parts, other, strict=True)
                ]
            )
        run_together([lockstep(one.finish()) for one in parts])
        assert same([dict(own) for own in given], [dict(own) for own in other])
    assert same([one.state_dict() for one in whole], [one.state_dict() for one in parts])


@pytest.mark.parametrize("spec", KEEPING)
def test_saved_and_loaded_equals_uninterrupted(spec: str) -> None:
    group = averagers(spec, 2)
    for step in range(2):
        run_step(group, [gradients(step, rank) for rank in range(2)])
    states = copy.deepcopy([one.state_dict() for one in group])
    again = averagers(spec, 2)
    again[0].load_state_dict(states[0])  # its own
    again[1].load_state_dict(states)  # that of all
    for step in range(2, 4):
        given = [gradients(step, rank) for rank in range(2)]
        other = copy.deepcopy(given)
        assert same(run_step(group, given), run_step(again, other))
    assert same([one.state_dict() for one in group], [one.state_dict() for one in again])


RANK_COUNTS = (1, 2, 3, 4, 8)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("spec", ["topk:5%", "minmax:2", "powersgd:2", "dgc:5%"])
def test_another_number_of_ranks_keeps_the_pending_mean(spec: str) -> None:
    """Jobs that resumed on half as many ranks got their pending update twice.

    What training still has to receive is the mean of the residuals. Their sum was kept, and then
    divided by the new number of ranks: the update grew by old over new.
    """
    for old in RANK_COUNTS:
        group = averagers(spec, old)
        for step in range(2):
            run_step(group, [gradients(step, rank) for rank in range(old)])
        states = [one.state_dict() for one in group]
        for new in RANK_COUNTS:
            again = averagers(spec, new)
            for one in again:
                if old not in (1, new):
                    with pytest.raises(CompressionError, match="list of all"):
                        one.load_state_dict(states[0])
                one.load_state_dict(states)
            for name in SHAPES:
                pending, loaded = (sum(o.residual(name) for o in g) for g in (group, again))
                assert isinstance(pending, Tensor)
                torch.testing.assert_close(loaded / new, pending / old, rtol=1e-5, atol=1e-6)
                largest = max(float(one.residual(name).norm()) for one in group)
                assert all(float(one.residual(name).norm()) <= 1.001 * largest for one in again)
            means = run_step(again, [gradients(5, rank) for rank in range(new)])
            assert all(same(mean, means[0]) for mean in means)


def test_states_of_other_parts_of_a_model_are_refused() -> None:
    """With tensor parallelism residuals of other ranks' parts were averaged with this rank's."""
    group = averagers("minmax:2", 2)
    run_step(group, [gradients(0, rank) for rank in range(2)])
    states = [{**one.state_dict(), "holders": 1} for one in group]
    for ranks in (2, 3):
        (again, *_) = averagers("minmax:2", ranks)
        again.load_state_dict(states)
        with pytest.raises(CompressionError, match="2 states are of rank 0, needs 1: with tensor"):
            again.load_state_dict([*states, *states])


def test_states_of_several_steps_are_refused() -> None:
    """A job that ended while its ranks saved left files of two steps, which were mixed."""
    group = averagers("randomk:10%", 2)
    states: list[dict[str, Any]] = []
    for step, one in enumerate(group):
        run_step(group, [gradients(step, rank) for rank in range(2)])
        states.append(one.state_dict())
    for again in (*averagers("randomk:10%", 2), *averagers("randomk:10%", 3)):
        with pytest.raises(CompressionError, match="states are of steps 1, 2, needs those of one"):
            again.load_state_dict(states)


@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 2), (2, 3)])
def test_another_number_of_ranks_keeps_the_momentum_of_dgc(old: int, new: int) -> None:
    """On equal gradients of all ranks, a job goes on as if its number of ranks had not changed."""
    group = averagers("dgc:5%", old)
    for step in range(3):
        run_step(group, [gradients(step, 0) for _ in range(old)])
    again = averagers("dgc:5%", new)
    for one in again:
        one.load_state_dict([rank.state_dict() for rank in group])
    for step in range(3, 6):
        before = run_step(group, [gradients(step, 0) for _ in range(old)])[0]
        after = run_step(again, [gradients(step, 0) for _ in range(new)])[0]
        for name in SHAPES:
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-4)


def test_weights_of_residuals_keep_the_mean_and_their_size() -> None:
    for old in range(1, 10):
        for new in range(1, 10):
            weights = [residual_weights(rank, new, old) for rank in range(new)]
            assert all(sum(own.values()) == pytest.approx(1) for own in weights)
            for source in range(old):
                total = sum(own.get(source, 0.0) for own in weights)
                assert total == pytest.approx(new / old)
            if old == new:
                assert weights == [{rank: 1.0} for rank in range(new)]


def other_strides(tensor: Tensor) -> Tensor:
    """Return the tensor in other strides: channels last, or transposed."""
    if tensor.dim() < 2:
        return tensor.clone()
    order = (0, *range(2, tensor.dim()), 1) if tensor.dim() > 2 else (1, 0)
    back = [order.index(dimension) for dimension in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("spec", SPECS)
def test_memory_formats_make_no_difference(spec: str) -> None:
    """Residuals of parameters in channels_last were in the order of memory, in the logical shape.

    So what a checkpoint held was permuted, and low-rank codecs factorised a matrix of mixed-up
    rows. Means, residuals and states are those of contiguous gradients, whatever the strides.
    """
    contiguous, strided = averagers(spec, 2), averagers(spec, 2)
    for step in range(3):
        given = [gradients(step, rank) for rank in range(2)]
        if step == 2:
            dict(given[1])["b.weight"][0, 3, 1] = torch.nan
        other = [[(name, other_strides(value)) for name, value in own] for own in given]
        assert not dict(other[0])["b.weight"].is_contiguous()
        means, others = run_step(contiguous, given)[0], run_step(strided, other)[0]
        assert contiguous[0].finite == strided[0].finite
        for name, mean in means.items():
            torch.testing.assert_close(others[name], mean, rtol=0, atol=0, equal_nan=True)
        for one, two in zip(contiguous, strided, strict=True):
            assert same(one.state_dict(), two.state_dict())
    for one, two in zip(contiguous, strided, strict=True):  # residuals left to other codecs
        one.set_codec(None, "bf16")
        two.set_codec(None, "bf16")
    given = [gradients(9, rank) for rank in range(2)]
    other = [[(name, other_strides(value)) for name, value in own] for own in given]
    assert same(run_step(contiguous, given)[0], run_step(strided, other)[0])


def test_momentum_of_dgc_begins_anew_after_another_codec() -> None:
    """With the first gradient, not with the residual that the other codec left."""
    (one,) = averagers("dgc:5%", 1)
    run_step([one], [gradients(0, 0)])
    one.set_codec(None, "topk:5%")
    run_step([one], [gradients(1, 0)])
    left = one.residual("a.weight")
    one.set_codec(None, "dgc:5%")
    given = gradients(2, 0)
    gradient = given[0][1].clone()
    run_step([one], [given])
    unsent = one.state_dict()["parameters"]["a.weight"]["states"]["dgc"][0]["unsent"].view(70, 40)
    momentum = one.residual("a.weight") - unsent
    expected = torch.where(unsent == 0, 0, MOMENTUM * gradient)
    assert left.any()
    torch.testing.assert_close(momentum, expected, rtol=0, atol=1e-5)


def test_a_change_of_codec_keeps_residuals_and_sends_them_with_a_codec_without_feedback() -> None:
    group = averagers("powersgd:1", 2)
    run_step(group, [gradients(0, rank) for rank in range(2)])
    kept = [one.residual("a.weight") for one in group]
    for one in group:
        one.set_codec("a.weight", "none")
        assert str(one.codecs["a.weight"]) == "none"
        assert str(one.codecs["b.weight"]) == "powersgd:1"
    given = [gradients(1, rank) for rank in range(2)]
    total = sum(dict(own)["a.weight"].clone() + k for own, k in zip(given, kept, strict=True))
    means = run_step(group, given)
    assert isinstance(total, Tensor)
    torch.testing.assert_close(means[0]["a.weight"], total / 2)
    assert not group[0].residual("a.weight").any()
    for one in group:
        one.set_codec(None, "powersgd:2")
        assert str(one.codecs["a.bias"]) == "none"
    run_step(group, [gradients(2, rank) for rank in range(2)])
    assert group[0].residual("a.weight").any()


@pytest.mark.parametrize("spec", ["none", "bf16"])
def test_residuals_that_are_left_wait_for_a_finite_step(spec: str) -> None:
    """They were lost with a step that a scaler skipped, as nothing else was kept of it."""
    group = averagers("minmax:2", 2)
    run_step(group, [gradients(0, rank) for rank in range(2)])
    kept = [one.residual("a.weight") for one in group]
    for one in group:
        one.set_codec(None, spec)
    run_step(group, [gradients(1, rank, scale=torch.inf if rank else 1.0) for rank in range(2)])
    assert not any(one.finite for one in group)
    assert all(torch.equal(o.residual("a.weight"), k) for o, k in zip(group, kept, strict=True))
    run_step(group, [gradients(2, rank) for rank in range(2)])
    assert all(one.finite and not one.residual("a.weight").any() for one in group)


@pytest.mark.parametrize("left_to", ["", "none", "bf16"])
@pytest.mark.parametrize("spec", KEEPING)
def test_a_parameter_that_no_rank_used_keeps_its_residual(spec: str, left_to: str) -> None:
    """DDP drops the mean of such a parameter: what was sent of its residual was lost."""
    group, name = averagers(spec, 2), "a.weight"
    run_step(group, [gradients(0, rank) for rank in range(2)])
    if left_to:
        for one in group:
            one.set_codec(None, left_to)
    before = copy.deepcopy([one.state_dict()["parameters"] for one in group])
    for step, users in enumerate(([], [1], [0, 1]), start=1):
        given = [gradients(step, rank) for rank in range(2)]
        unused = [[] if rank in users else [name] for rank in range(2)]
        for rank in {0, 1}.difference(users):
            dict(given[rank])[name].zero_()
        total = sum(dict(own)[name] + o.residual(name) for o, own in zip(group, given, strict=True))
        run_together(
            [
                lockstep(one.add(own, unused=names))
                for one, own, names in zip(group, given, unused, strict=True)
            ]
        )
        run_together([lockstep(one.finish()) for one in group])
        mean = dict(given[0])[name]
        assert torch.equal(dict(given[1])[name], mean)
        after = [one.state_dict()["parameters"] for one in group]
        unchanged = [same(a.get(name), b[name]) for a, b in zip(after, before, strict=True)]
        assert unchanged == [not users] * 2
        assert bool(mean.any()) == bool(users)
        if spec != "sign" and "dgc" not in spec:  # a vote, and momentum
            left = sum(one.residual(name) for one in group)
            rounded = 0.05 if left_to == "bf16" else 1e-4
            torch.testing.assert_close(left + 2 * mean, total, rtol=0, atol=rounded)


@pytest.mark.parametrize("new", [1, 2, 3])
def test_states_of_replicas_of_a_shard_keep_the_pending_mean(new: int) -> None:
    """A shard's residuals grew by the number of its replicas at each resume."""
    replicas = [averagers("minmax:2", 2) for _ in range(3)]
    for number, group in enumerate(replicas):
        run_step(group, [gradients(number, rank) for rank in range(2)])
    states = [one.state_dict() for group in replicas for one in group]
    again = averagers("minmax:2", new)
    for one in again:
        one.load_state_dict(states)
    for name in SHAPES:
        pending = sum(one.residual(name) for group in replicas for one in group)
        loaded = sum(one.residual(name) for one in again)
        assert isinstance(pending, Tensor)
        torch.testing.assert_close(loaded / new, pending / 6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["powersgd:1", "dgc:20%"])
def test_residuals_follow_the_scale(spec: str) -> None:
    one, other = (averagers(spec, 2) for _ in range(2))
    previous = 1.0
    for step, scale in enumerate((1.0, 8.0, 0.5)):
        plain = run_step(one, [gradients(step, rank) for rank in range(2)])
        for each in other:
            each.rescale(scale / previous)
        scaled = run_step(other, [gradients(step, rank, scale) for rank in range(2)])
        previous = scale
        for name in SHAPES:
            torch.testing.assert_close(scaled[0][name] / scale, plain[0][name])


def test_parameters_that_a_state_lacks_begin_without_a_residual() -> None:
    """A state of a job in which layers were frozen was refused where they are trained."""
    shapes = {name: shape for name, shape in SHAPES.items() if name != "a.weight"}
    frozen = Averager("minmax:2", shapes, rank=0, ranks=1)
    run_step([frozen], [[pair for pair in gradients(0, 0) if pair[0] != "a.weight"]])
    for codec in ("minmax:2", "topk:5%"):
        (one,) = averagers(codec, 1)
        one.load_state_dict(frozen.state_dict(), codecs=codec == "minmax:2")
        assert torch.equal(one.residual("b.weight"), frozen.residual("b.weight"))
        assert not one.residual("a.weight").any()
        assert {str(one.codecs[name]) for name in ("a.weight", "b.weight")} == {codec}
        run_step([one], [gradients(1, 0)])
        assert one.residual("a.weight").any()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(CompressionError, match="rank is 2, needs 0 to 1"):
        Averager("none", SHAPES, rank=2, ranks=2)
    (one,) = averagers("powersgd:2", 1)
    with pytest.raises(
        CompressionError, match="'c', needs the name of one that is averaged, such as 'a.weight'"
    ):
        one.set_codec("c", "none")
    with pytest.raises(CompressionError, match="needs one of"):
        one.set_codec(None, "zip")
    with pytest.raises(
        CompressionError, match=r"gradient 'a.bias' has shape \(3,\), needs \(40,\)"
    ):
        one.add([("a.bias", torch.ones(3))])
    one.abort()
    state = one.state_dict()
    state["codecs"] = {"c": "none"}
    with pytest.raises(CompressionError, match="'c', the model has not"):
        one.load_state_dict(state)
    for wrong in ({}, {"a": 1}, None, 3, "auto", [None]):
        with pytest.raises(CompressionError, match=r"needs what (its )?state_dict\(\) returned"):
            one.load_state_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(CompressionError, match=r"'a\.\*', needs a list of patterns"):
        Policy(except_for="a.*")
