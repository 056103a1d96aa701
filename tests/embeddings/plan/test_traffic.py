"""Predicted bytes, against those of the messages of a job's batches."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from headrace.embeddings import (
    EmbeddingError,
    EmbeddingProfile,
    EmbeddingTable,
    Examples,
    InitialValues,
    StepBytes,
    Synchronisation,
)
from headrace.embeddings.data.skew import Skew
from headrace.embeddings.measure.accesses import measure_accesses
from headrace.embeddings.plan.plan import RUNNABLE
from headrace.embeddings.plan.traffic import RowBytes, role_bytes, step_bytes
from headrace.embeddings.run.batch_messages import encode_batch, encode_ids
from headrace.embeddings.run.cacher.cacher import CacherOptions, dispatched, id_batch
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.trainers.exchange_lists import exchange_lists
from headrace.embeddings.tables import table_groups

COUNTS = (7, 300, 20_000)
BATCH = 512
TRAINERS = 3
LOOKAHEAD = 16
DIM = 8
ROW = RowBytes(gradient_bytes=4 * DIM, row_bytes=4 * (DIM + 1))
SKEW = Skew(kind="zipf", parameter=1.05)


def batches() -> Iterator[Examples]:
    random = np.random.default_rng(0)
    while True:
        bags = random.integers(0, 3, BATCH)
        yield Examples(
            labels=np.zeros(BATCH, np.float32),
            dense=np.zeros((BATCH, 2), np.float32),
            ids=(
                *(SKEW.draw(rows, BATCH, random) for rows in COUNTS[:-1]),
                SKEW.draw(COUNTS[-1], int(bags.sum()), random) | 1 << 32,
            ),
            lengths=(None, None, bags),
        )


@pytest.fixture(scope="module")
def profile() -> EmbeddingProfile:
    return measure_accesses(batches(), trainers=TRAINERS, lookahead=LOOKAHEAD, most_batches=80)


def message_bytes(message: RpcMessage) -> int:
    return sum(column.nbytes for column in message.columns.values())


def counted_bytes(synchronisation: Synchronisation, lookahead: int) -> Counter[str]:
    """Bytes of the messages of a step, the mean of those with warm caches."""
    tables = tuple(EmbeddingTable(name=str(rows), rows=rows, dim=DIM) for rows in COUNTS[:-1])
    hashed = EmbeddingTable(name="bags", rows=0, dim=DIM, initial=InitialValues(scale=1.0))
    options = CacherOptions(
        tables=(*tables, hashed),
        groups=table_groups((*tables, hashed), state_per_row=1),
        slots=(200_000,),
        trainers=TRAINERS,
        lookahead=lookahead,
        prefetch=2,
        synchronisation=synchronisation,
    )
    total: Counter[str] = Counter()
    arriving = (id_batch(examples) for examples in islice(batches(), 100))
    warm = list(dispatched(arriving, options))[30:80]
    for parts in warm:
        for trainer, part in enumerate(parts):
            group = part.groups[0]
            total["dispatched"] += message_bytes(encode_batch(part))
            total["fetched"] += ROW.row_bytes * len(group.fetched.ids)
            total["written"] += (ROW.row_bytes + 8) * len(group.evicted.ids)
            for name, lists in zip(
                ("critical", "delayed"), exchange_lists(group, trainer, TRAINERS), strict=True
            ):
                total[name] += ROW.gradient_bytes * len(lists.gradients_sent.rows)
                total[name] += ROW.row_bytes * len(lists.rows_sent.rows)
    return Counter({name: number / len(warm) for name, number in total.items()})


@pytest.mark.parametrize("synchronisation", RUNNABLE)
@pytest.mark.parametrize("lookahead", [5, LOOKAHEAD])
def test_bytes_of_messages_are_predicted(
    profile: EmbeddingProfile, synchronisation: Synchronisation, lookahead: int
) -> None:
    predicted = step_bytes(profile, profile.step_rows(synchronisation, lookahead), ROW)
    for name, counted in counted_bytes(synchronisation, lookahead).items():
        assert getattr(predicted, name) == pytest.approx(counted, rel=0.04, abs=40), name
    read = message_bytes(encode_ids(id_batch(next(batches()))))
    assert predicted.read == pytest.approx(read, rel=0.02)


def test_roles_share_the_bytes_of_a_step(profile: EmbeddingProfile) -> None:
    total = step_bytes(
        profile,
        profile.step_rows(Synchronisation.TARGETED, LOOKAHEAD),
        ROW,
        dense_bytes=600,
        dirty_rows=10,
    )
    assert total.averaged == 2 * 2 * 600
    numbers = {"trainer": TRAINERS, "server": 2, "cacher": 1, "reader": 5}
    roles = role_bytes(total, trainers=TRAINERS, servers=2, readers=5)
    sent = sum(numbers[role] * link.sent for role, link in roles.items())
    received = sum(numbers[role] * link.received for role, link in roles.items())
    assert sent == pytest.approx(received)
    assert sent == pytest.approx(total.of_trainers + total.read)


def test_rows_of_synchronisations_without_caches_are_refused(profile: EmbeddingProfile) -> None:
    with pytest.raises(EmbeddingError, match="synchronisation is pooled, which has no caches"):
        profile.step_rows(Synchronisation.POOLED, 2)
    assert isinstance(
        step_bytes(profile, profile.step_rows(Synchronisation.LRPP, 3), ROW), StepBytes
    )
