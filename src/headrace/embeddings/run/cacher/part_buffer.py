"""Trainers' parts of batches from the cacher's decisions to the trainers that take them.

Batches are numbered on over epochs. A part is dropped when its trainer has taken it.
"""

import threading
from collections.abc import Sequence

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.rpc.calls import RpcCall
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.errors import CommunicationError

END = RpcMessage(head={"end": True})
"""Of an epoch, in place of a batch."""


class PartBuffer:
    """Messages of parts, by batch and trainer.

    Parameters
    ----------
    room : batches that are decided before the slowest trainer takes its part.
    epoch, epoch_began, batch : the first epoch, its first batch, and the first one that is taken.

    Attributes
    ----------
    changed : is notified of every change, and guards them.
    waited : whether the parts that were added last had to wait for room.
    """

    def __init__(
        self, trainers: int, room: int, *, epoch: int = 0, epoch_began: int = 0, batch: int = 0
    ) -> None:
        self._room = room
        self.changed = threading.Condition()
        self.waited = False
        self._parts: dict[int, list[RpcMessage | None]] = {}
        self._begins = [0] * epoch + [epoch_began]  # of epochs, their first batches
        self._next = [batch] * trainers  # batch of every trainer that it takes next
        self._left: dict[int, str] = {}  # trainers, and the reason
        self._failure: tuple[int, Exception] | None = None  # from which epoch on
        self._closed = False

    def put(self, batch: int, parts: Sequence[RpcMessage]) -> bool:
        """Add a batch's parts as soon as they have room; return whether others can follow."""
        with self.changed:

            def has_room() -> bool:
                # A trainer that leaves, or `close`, ends the wait.
                return batch < min(self._next) + self._room or self._over()

            self.waited = not has_room()
            self.changed.wait_for(has_room)
            if self._over():
                return False
            self._parts[batch] = [*parts]
            self.changed.notify_all()
            return True

    def set_room(self, room: int) -> None:
        """Change the room."""
        with self.changed:
            self._room = room
            self.changed.notify_all()

    def short(self) -> bool:
        """Return whether a trainer has taken all parts, or none will be taken."""
        return not self._parts or max(self._next) > max(self._parts) or self._over()

    def ahead(self, batch: int) -> int:
        """Return the batches up to this one whose parts the slowest trainer has not taken."""
        with self.changed:
            return batch + 1 - min(self._next)

    def end_epoch(self, batch: int) -> None:
        """End an epoch before a batch, which is the first one of the next epoch."""
        with self.changed:
            self._begins.append(batch)
            self.changed.notify_all()

    def fail(self, error: Exception, epoch: int = 0) -> None:
        """Give an error to all trainers, in place of batches of an epoch or a later one."""
        with self.changed:
            self._failure = self._failure or (epoch, error)
            self.changed.notify_all()

    def leave(self, trainer: int, reason: str) -> None:
        """Note that a trainer takes no more parts: the others get an error after those it took."""
        with self.changed:
            self._left.setdefault(trainer, reason)
            self.changed.notify_all()

    def close(self) -> None:
        """Give no more parts."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def take(self, call: RpcCall, trainer: int, batch: int, epoch: int) -> RpcMessage:
        """Return a trainer's part of a batch, or the end of the epoch.

        Raises
        ------
        EmbeddingError : the data are wrong; or a trainer begins an epoch within the one before it,
            which all trainers get.
        CommunicationError : a role failed, another trainer left, or the deadline passed.
        """
        with self.changed:
            self._check(trainer, batch, epoch)
            call.wait(self.changed, lambda: self._answerable(trainer, batch, epoch))
            if self._failure is not None and epoch >= self._failure[0]:
                raise self._failure[1]
            if self._ends(batch, epoch):
                return END
            self._raise_departure(trainer, batch)
            if self._closed:
                raise CommunicationError("the cacher was closed")
            return self._taken(trainer, batch)

    def _taken(self, trainer: int, batch: int) -> RpcMessage:
        parts = self._parts[batch]
        part = parts[trainer]
        assert part is not None, "a part is taken once: `_check`"
        parts[trainer] = None
        self._next[trainer] = batch + 1
        if not any(parts):
            del self._parts[batch]
        self.changed.notify_all()
        return part

    def _check(self, trainer: int, batch: int, epoch: int) -> None:
        """Raise unless a trainer asks for its next batch, in the epoch that has it."""
        if batch != self._next[trainer]:
            raise CommunicationError(
                f"trainer {trainer} asks for batch {batch}, needs {self._next[trainer]}"
            )
        began = self._begins[epoch] if 0 <= epoch < len(self._begins) else None
        if began is None or batch < began:
            error = EmbeddingError(
                f"trainer {trainer} begins epoch {epoch} at batch {batch}, within epoch "
                f"{epoch - 1}: all trainers need all batches of an epoch"
            )
            self.fail(error)
            raise error

    def _answerable(self, trainer: int, batch: int, epoch: int) -> bool:
        return (
            batch in self._parts
            or self._ends(batch, epoch)
            or self._closed
            or self._departed(trainer, batch) is not None
            or (self._failure is not None and epoch >= self._failure[0])
        )

    def _ends(self, batch: int, epoch: int) -> bool:
        return epoch + 1 < len(self._begins) and self._begins[epoch + 1] == batch

    def _departed(self, trainer: int, batch: int) -> int | None:
        """Return another trainer that left, and takes no part of a batch."""
        others = (gone for gone in self._left if gone != trainer and self._next[gone] <= batch)
        return next(others, None)

    def _raise_departure(self, trainer: int, batch: int) -> None:
        departed = self._departed(trainer, batch)
        if departed is not None:
            raise CommunicationError(
                f"trainer {departed} left before batch {self._next[departed]}: "
                f"{self._left[departed]}"
            )

    def _over(self) -> bool:
        return self._closed or bool(self._left) or self._failure is not None
