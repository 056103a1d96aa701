"""Spans in torch.profiler: a child of a fork has none of its parent's."""

import os
import signal

from headrace.collectives.run.torch import spans


def test_a_child_that_is_forked_while_a_span_begins_has_spans_of_its_own() -> None:
    """A child whose parent was opening a span at the fork waited for ever at its own first span.

    Its copy of the lock was held by a thread that the child does not have.
    """
    parents = spans.open_span("parent")
    with spans._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it if it waits
            spans.close_span(spans.open_span("child"))
            spans.close_span(parents)
            os._exit(1 if parents.done() else 0)
    assert os.waitpid(child, 0)[1] == 0
    spans.close_span(parents)
    assert parents.done()
