"""Works of collectives that follow each other, as what the next one moves depends on the last."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from headrace.collectives.run.torch.completions import completion_threads
from headrace.collectives.run.torch.untraced import untraced
from headrace.collectives.run.torch.work import PendingWork, writing
from headrace.executor import Executor

Fail = Callable[[str], None]


@untraced
class ChainedWork(PendingWork):
    """Work of collectives of which each is begun by the callback of the one before.

    So they are begun in one order on all ranks, as callbacks are, and on connections of their own
    but the first.

    Parameters
    ----------
    fail : ends the group for all ranks, for a reason.
    steps : begins them, and yields the work of each.
    results : of the last one; may be filled by `steps`.
    """

    def __init__(
        self, executor: Executor, fail: Fail, steps: Iterator[Any], results: list[torch.Tensor]
    ) -> None:
        self._current: PendingWork = next(steps)
        super().__init__(executor, (), callbacks=self._current.callbacks)
        self._fail, self._steps, self._tensors = fail, steps, results
        self._copies = self._current._copies
        self._begun = self._current.get_future().then(self._go_on)

    def _go_on(self, done: Any) -> None:
        error = self._current.exception()
        try:
            done.value()
        except RuntimeError as failure:  # its results did not get to their device
            error = error or failure
        if error is not None:  # other ranks' call may have gone well, and they begin the next one
            self._fail(str(error))
        try:
            with writing(self._tensors):
                following = None if error else next(self._steps, None)
            if following is not None:
                self._current, self._copies = following, following._copies
                following.get_future().add_done_callback(self._go_on)
                return
        except Exception as failure:
            error = failure.with_traceback(None)
        self.end(error)
        completion_threads.run(self.complete)  # callbacks may wait for those behind this one

    def _wait_natively(self) -> None:
        self._begun.wait()  # in a callback: runs those before it
        self._wait_for_end(None)
