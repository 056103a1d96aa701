"""`repr` of what commands and functions return is one line: a plan's fields are long columns."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace.artifact as artifact_io
import headrace.torch  # noqa: F401 - registers the backend
from headrace.compression import Accordion, ddp_hook
from headrace.index import Index, ShardedIndex
from headrace.kinds import artifact_kinds
from headrace.memory import fit, fit_blocks, partitioner
from tests.old_files_test import DIGESTS, WRITTEN

LONGEST = 160


def assert_one_line(value: object, *words: str) -> None:
    text = repr(value)
    assert text.startswith(f"<{type(value).__name__}"), text
    assert len(text) <= LONGEST, text
    assert "\n" not in text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("kind", DIGESTS)
def test_a_value_of_every_kind_is_described_in_one_line(kind: str) -> None:
    artifact = artifact_io.load(WRITTEN / f"{kind}.headrace")
    assert_one_line(artifact, kind)
    value = artifact_kinds()[kind].load(artifact, kind)
    assert_one_line(value, value.description)


def test_plans_name_what_they_are_for() -> None:
    for kind, words in {
        "plan": ("allreduce of 6 ranks", "12.85 us predicted", "bound 11.35 us"),
        "plan-book": ("9 plans of allreduce", "measured-4-hosts"),
        "memory-plan": ("65 B of 100 B", "24 runs of 18 operators"),
        "compression-plan": ("powersgd:4 during", "4.42 ms"),
        "index-plan": ("perfect", "best of 38"),
        "attention-plan": ("4 of 8 heads represent", "35% of the cache's bytes"),
    }.items():
        artifact = artifact_io.load(WRITTEN / f"{kind}.headrace")
        assert_one_line(artifact_kinds()[kind].load(artifact, kind), *words)


def test_fitted_modules_show_the_model_and_its_budgets() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    sample = torch.ones(4, 8)
    fitted = fit(model, sample, "1MiB", cache=False)
    assert_one_line(fitted, "Sequential", "1 MiB")
    fitted.set_budget("2MiB")
    assert_one_line(fitted, "steps within 2 MiB")
    assert_one_line(fit(model, (sample, sample), "1MiB", loss=nn.MSELoss(), cache=False), "Seq")
    blocks = fit_blocks(model, [model[0], model[2]], sample, "1MiB", cache=False)
    assert_one_line(blocks, "2 blocks")
    assert len(repr(model).splitlines()) == 5, "the fitted blocks are a line each"
    assert_one_line(partitioner("6GiB"), "6GiB")


def test_indexes_show_their_size_and_structure() -> None:
    assert_one_line(Index(np.arange(9), np.arange(9)), "9 keys", "hashed")
    assert_one_line(ShardedIndex(dtype="int64"), "0 keys", "shards")


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("headrace", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_groups_and_hooks_show_ranks_and_codecs(group: dist.ProcessGroup) -> None:
    assert repr(group) == "<headrace group '0': rank 0 of 1>"

    def parallel() -> DistributedDataParallel:
        return DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))

    assert_one_line(ddp_hook(parallel(), "powersgd:4"), "powersgd:4 for 2", "none for 2", "step 0")
    model = parallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = Accordion(low="powersgd:4", high="powersgd:1")
    assert_one_line(ddp_hook(model, schedule, optimizer=optimizer), "ScheduledHook")
    assert_one_line(ddp_hook(parallel(), "auto"), "AutomaticHook", "none for 4")
