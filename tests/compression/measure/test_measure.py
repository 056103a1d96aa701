"""Profiles that are measured: a real job of two ranks, and codecs' times without exchanges."""

import itertools
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headrace.cli.main import main
from headrace.compression.averaging import Averager
from headrace.compression.cli.show import profile_summary
from headrace.compression.codecs.requests import run_together
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.measure import computing, example, local
from headrace.compression.measure.job import busiest
from headrace.compression.measure.local import measure_locally
from headrace.compression.measure.step import StepTimes, slowest
from headrace.compression.plan.advice import advise
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.profile import CompressionProfile, ModelTensor
from headrace.errors import CommunicationError
from headrace.functions import folder_on_path, named_function
from headrace.job.load import MachineLoad
from tests.compression.device_double import DEVICE, Double, LateStaging
from tests.waiting import HANG_S

TENSORS = [
    [ModelTensor(name="b", shape=(64,)), ModelTensor(name="w", shape=(64, 128))],
    [ModelTensor(name="v", shape=(128, 256))],
]
CODECS = ["bf16", "minmax:4", "sign", "topk:1%", "powersgd:2", "randomk:1%", "fp8"]


@pytest.mark.sampled(1, of="whole jobs")
def test_a_profile_of_a_job_has_all_parameters_and_times_and_is_advised(tmp_path: Path) -> None:
    found = measure_locally(ranks=2, codecs=["bf16", "minmax:4"], bucket_cap_mb=1.0, steps=3)
    model, _ = example.perceptron()
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert {tensor.name: tensor.shape for tensor in found.tensors} == shapes
    assert found.tensors[0].name.startswith("4."), "the backward pass begins at the last layer"
    assert len(found.buckets) > 1
    ready = [bucket.ready_us for bucket in found.buckets]
    assert 0 < ready[0] < ready[-1] <= found.backward_us
    assert min(found.forward_us, found.other_us, found.used_bytes) > 0
    assert found.gamma >= 1
    assert found.contention >= 0
    assert found.ranks_per_host == 2
    assert set(found.codecs) == {"bf16", "minmax:4"}
    found.save(tmp_path / "profile")
    assert CompressionProfile.load(tmp_path / "profile").digest == found.digest
    slow = FormulaNetwork(scheme="ring", workers=2, bandwidth_bytes_per_s=1e5)
    assert advise(found, slow, break_evens=False).winner.codec == "minmax:4"
    derived = {"bf16": "by bytes", "sign": "of minmax:4"}
    like = replace(found, provenance={**found.provenance, "derived": derived})
    again = measure_locally(ranks=2, codecs=["sign"], like=like)
    assert dict(again.derived) == {"bf16": "by bytes"}, "sign is measured now"
    assert again.backward_us == found.backward_us
    assert set(again.codecs) == {"bf16", "minmax:4", "sign"}
    for profile in (found, again):
        load = MachineLoad.from_provenance(profile.provenance)
        assert load is not None
        assert 0 < load.seconds < HANG_S
        assert ("machine", load.text) in profile_summary(profile)


def test_the_load_of_a_profile_is_that_of_the_rank_that_waited_most() -> None:
    """Profiles that were taken on a busy machine said nothing of it."""
    idle = MachineLoad(seconds=1.0, processors=2, load_average=0.1, waited_share=0.01)
    busy = replace(idle, waited_share=0.31)
    assert busiest([idle, busy, idle]) == busy
    unknown = replace(idle, waited_share=None, load_average=1.5)
    assert busiest([replace(idle, waited_share=0.04), unknown]) == unknown


def test_exchanges_wait_for_the_rank_that_is_last_at_each_point() -> None:
    one = StepTimes(forward=10.0, backward=30.0, other=5.0, ready=[8.0, 30.0])
    two = StepTimes(forward=14.0, backward=20.0, other=3.0, ready=[9.0, 20.0])
    found = slowest([one, two])
    assert found.other == 5.0
    assert found.other + found.forward == max(5 + 10, 3 + 14)
    ends = [found.other + found.forward + ready for ready in found.ready]
    assert ends == [max(5 + 10 + 8, 3 + 14 + 9), max(5 + 10 + 30, 3 + 14 + 20)]
    assert found.backward == found.ready[-1]
    assert slowest([one]) == one


def test_codecs_are_timed_on_every_bucket_and_on_all() -> None:
    found = computing.time_codecs(CODECS, TENSORS, ranks=2, repeats=1)
    assert list(found) == [str(CodecSpec.parse(text)) for text in CODECS]
    for timing in found.values():
        assert timing.elements == (64 * 128, 128 * 256, 64 * 128 + 128 * 256)
        assert min(timing.encode_us) > 0


def test_codecs_are_timed_whatever_the_default_device_is() -> None:
    """A script's torch.set_default_device("cuda") ended in an error about generators."""
    with torch.device("meta"):
        timings = computing.time_codecs(["minmax:4"], TENSORS[1:], ranks=2, repeats=1)
    assert timings["minmax:4"].elements == (128 * 256,)


def test_the_timed_computation_is_that_of_a_step() -> None:
    """The copies that stand for exchanges give a rank the mean of equal ranks, bit by bit."""
    for codec in CODECS:
        shapes = {tensor.name: tensor.shape for bucket in TENSORS for tensor in bucket}
        given = {name: torch.randn(shape) for name, shape in shapes.items()}
        alone = Averager(codec, shapes, rank=0, ranks=1)
        mine = {name: tensor.clone() for name, tensor in given.items()}
        computed = computing.averaging_us(alone, list(mine.items()))
        assert 0 < computed.first <= computed.last <= computed.total
        other = Averager(codec, shapes, rank=0, ranks=1)
        run_together([other.average(list(given.items()))])
        for name, tensor in given.items():
            assert torch.equal(tensor, mine[name]), (codec, name)


def test_times_of_parts_follow_from_how_often_each_happens() -> None:
    computed = computing.Computed(first=100.0, last=160.0, total=250.0)
    parts = computing._parts  # pyright: ignore[reportPrivateUsage]
    assert parts(computed, {"all_to_all", "allgather"}, 2) == (100.0, 50.0)
    assert parts(computed, {"allgather"}, 3) == (100.0, 50.0)
    assert parts(computed, {"allreduce"}, 2) == (160.0, 90.0)


def test_all_ranks_begin_each_computation_at_once() -> None:
    barrier = threading.Barrier(2)
    order = itertools.count()
    began: list[list[int]] = [[], []]

    def rank(number: int) -> None:
        def wait() -> None:
            barrier.wait(HANG_S)
            began[number].append(next(order))
            barrier.wait(HANG_S)

        computing.time_codecs(["bf16"], TENSORS[1:], ranks=2, rank=number, barrier=wait, repeats=2)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(began[0]) == len(began[1]) == 4
    pairs = [{a // 2, b // 2} for a, b in zip(*began, strict=True)]
    assert all(len(pair) == 1 for pair in pairs)


def test_codecs_are_timed_on_a_device_with_copies_to_host_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LateStaging()
    monkeypatch.setattr(computing, "staging_of", lambda _device: late)
    with Double() as double:
        found = computing.time_codecs(CODECS, TENSORS[1:], ranks=2, repeats=1, device=DEVICE)
    for timing in found.values():
        assert timing.elements == (128 * 256,)
        assert min(timing.encode_us) > 0
    assert late.copies >= 2 * 3 * len(CODECS)  # there and back, with warm-up
    assert double.waits == ["aten._to_copy.default"] * len(CODECS)  # of new gradients


def test_a_model_that_cannot_be_found_fails_as_wrong_input_before_ranks_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "Roles", lambda _roles: pytest.fail("ranks are started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_here.py").write_text("def make(): ...")
    (tmp_path / "broken.py").write_text("def make(:")
    before = list(sys.path)
    for text in ("bad.module", "./found_here.py:make", "found_here:other", "broken:make"):
        arguments = ("compression", "measure", "--model", text, "-o", str(tmp_path / "profile"))
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert f"model is {text!r}, needs module:function" in " ".join(
            capsys.readouterr().err.split()
        )
    with folder_on_path():
        named_function("found_here:make")
    assert sys.path == before


def test_options_of_steps_have_no_effect_on_codecs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were ignored beside --like, which takes no steps and has its profile's buckets."""
    arguments = ["compression", "measure", "--like", "a.profile", "-o", "b.profile"]
    for name, text in (("--steps", "50"), ("--bucket", "1MiB")):
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments, name, text])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert f"{name} has no effect with --like" in " ".join(capsys.readouterr().err.split())


def test_an_error_of_a_model_that_prints_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a text without an end of its line it was lost, and the profile was missing."""
    script = "def make():\n    print('loading', end=' ')\n    raise ValueError('no weights')\n"
    (tmp_path / "printing.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommunicationError, match="no weights"):
        measure_locally("printing:make", ranks=2)


def test_parameters_without_a_gradient_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP asked for find_unused_parameters=True, which no option of the command gives it."""
    (tmp_path / "pooled.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.pooler = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n"
        "        return self.used(x)\n\n\n"
        "def make():\n"
        "    return Net(), torch.ones(2, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommunicationError, match=r"on 2 parameters, 'pooler.weight' among them"):
        measure_locally("pooled:make", ranks=2, steps=3)


def test_bad_arguments_fail_before_ranks_are_started() -> None:
    with pytest.raises(CompressionError, match="ranks is 1"):
        measure_locally(ranks=1)
    with pytest.raises(CompressionError, match="steps is 2, needs at least 3"):
        measure_locally(ranks=2, steps=2)
    with pytest.raises(CompressionError, match="bucket_cap_mb is 0, needs more than 0"):
        measure_locally(ranks=2, bucket_cap_mb=0.0)
    with pytest.raises(CompressionError, match="ranks is 1"):
        computing.time_codecs(["bf16"], TENSORS, ranks=1)
    for text in ("no.such.module:build", "math", "math:nothing", "math:pi"):
        with pytest.raises(CompressionError, match="model is"):
            named_function(text, CompressionError)


def test_a_batch_of_several_tensors_is_refused_by_name() -> None:
    """It was called as the function to the loss: 'dict' object is not callable."""
    model = torch.nn.Linear(2, 2)
    for returned, problem in (
        (model, "train:build returned Linear, needs a model and a batch"),
        ((model, {"x": 1}), "train:build returned a batch of type dict, needs a tensor; or"),
    ):
        with pytest.raises(CompressionError, match=problem):
            local.model_and_loss("train:build", returned)
    assert local.model_and_loss("train:build", (model, torch.zeros(3, 2)))[2] == 3
