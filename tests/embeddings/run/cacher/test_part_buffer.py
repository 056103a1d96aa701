"""Parts between decisions and trainers: order, room, ends of epochs, failures."""

import threading
import time

import pytest

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.cacher.part_buffer import END, PartBuffer
from headrace.embeddings.run.rpc.calls import EMPTY, RpcCall
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.errors import CommunicationError
from tests.waiting import HANG_S, STALL_S


def call(deadline_s: float = HANG_S) -> RpcCall:
    return RpcCall(EMPTY, "trainer", time.monotonic() + deadline_s, lambda: None)


def parts(batch: int) -> list[RpcMessage]:
    return [RpcMessage(head={"batch": batch, "trainer": trainer}) for trainer in range(2)]


@pytest.fixture
def buffer() -> PartBuffer:
    """Two batches of an epoch, and one of the next."""
    buffer = PartBuffer(2, room=3)
    assert buffer.put(0, parts(0))
    assert buffer.put(1, parts(1))
    buffer.end_epoch(2)
    assert buffer.put(2, parts(2))
    return buffer


def test_a_trainer_takes_its_parts_and_the_ends_of_epochs(buffer: PartBuffer) -> None:
    for trainer in (1, 0):
        for batch in (0, 1):
            part = buffer.take(call(), trainer, batch, 0)
            assert part.head == {"batch": batch, "trainer": trainer}
        assert buffer.take(call(), trainer, 2, 0) is END
        assert buffer.take(call(), trainer, 2, 1).head["batch"] == 2
    with pytest.raises(CommunicationError, match="its deadline passed"):
        buffer.take(call(STALL_S / 30), 0, 3, 1)


def test_parts_have_room_when_the_slowest_trainer_has_taken_its_own(buffer: PartBuffer) -> None:
    added = threading.Event()

    def add() -> None:
        assert buffer.put(3, parts(3))
        added.set()

    threading.Thread(target=add, daemon=True).start()
    buffer.take(call(), 1, 0, 0)
    assert not added.wait(STALL_S / 30)
    buffer.take(call(), 0, 0, 0)
    assert added.wait(HANG_S)


def test_batches_out_of_order_are_refused(buffer: PartBuffer) -> None:
    buffer.take(call(), 0, 0, 0)
    for batch in (0, 2):
        with pytest.raises(CommunicationError, match=f"asks for batch {batch}, needs 1"):
            buffer.take(call(), 0, batch, 0)


@pytest.mark.parametrize("epoch", [-1, 1, 2])
def test_an_epoch_within_the_one_before_is_an_error_of_all_trainers(
    buffer: PartBuffer, epoch: int
) -> None:
    buffer.take(call(), 0, 0, 0)
    message = f"trainer 0 begins epoch {epoch} at batch 1, within epoch {epoch - 1}"
    with pytest.raises(EmbeddingError, match=message):
        buffer.take(call(), 0, 1, epoch)
    with pytest.raises(EmbeddingError, match=message):
        buffer.take(call(), 1, 0, 0)
    assert not buffer.put(3, parts(3))


def test_a_failure_is_one_from_its_epoch_on(buffer: PartBuffer) -> None:
    buffer.fail(EmbeddingError("line 7"), epoch=1)
    for batch in (0, 1):
        buffer.take(call(), 0, batch, 0)
    assert buffer.take(call(), 0, 2, 0) is END
    with pytest.raises(EmbeddingError, match="line 7"):
        buffer.take(call(), 0, 2, 1)


def test_a_trainer_that_left_is_missed_at_the_batch_that_it_does_not_take(
    buffer: PartBuffer,
) -> None:
    buffer.take(call(), 1, 0, 0)
    buffer.leave(1, "its batches were closed")
    buffer.take(call(), 0, 0, 0)
    with pytest.raises(CommunicationError, match=r"trainer 1 left before batch 1: its batches"):
        buffer.take(call(), 0, 1, 0)
    assert not buffer.put(3, parts(3))


def test_a_trainer_that_left_after_an_epoch_leaves_it_to_the_others(buffer: PartBuffer) -> None:
    for batch in (0, 1):
        buffer.take(call(), 1, batch, 0)
    buffer.leave(1, "its batches were closed")
    for batch in (0, 1):
        buffer.take(call(), 0, batch, 0)
    assert buffer.take(call(), 0, 2, 0) is END
    with pytest.raises(CommunicationError, match="trainer 1 left before batch 2"):
        buffer.take(call(), 0, 2, 1)


def test_closing_ends_all_waits(buffer: PartBuffer) -> None:
    for batch in (0, 1):
        for trainer in (0, 1):
            buffer.take(call(), trainer, batch, 0)
    buffer.take(call(), 0, 2, 1)
    threading.Timer(STALL_S / 30, buffer.close).start()
    with pytest.raises(CommunicationError, match="the cacher was closed"):
        buffer.take(call(), 0, 3, 1)
    assert not buffer.put(3, parts(3))
