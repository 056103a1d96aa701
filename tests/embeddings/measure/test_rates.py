"""Processor time of a job's processes, by short runs of their code."""

import numpy as np
import torch

from headrace.embeddings import Examples
from headrace.embeddings.measure.rates import MeasuredBatches


def test_every_process_takes_some_time() -> None:
    random = np.random.default_rng(0)
    batches = [
        Examples(
            labels=None,
            dense=np.zeros((256, 1), np.float32),
            ids=tuple(random.integers(0, 500, 256) for _ in range(3)),
            lengths=(None,) * 3,
        )
        for _ in range(12)
    ]
    timed = MeasuredBatches(iter(batches))
    assert list(timed) == batches
    assert timed.sample == batches[:8]
    threads = torch.get_num_threads()
    seconds = timed.processor_seconds(trainers=2, dim=8)
    assert torch.get_num_threads() == threads
    assert all(0 < number < 1e-2 for number in seconds)


def test_the_first_batches_can_have_no_ids() -> None:
    """Of bags that are all empty: of as many as are sampled it ended in a division by zero."""
    batches = [
        Examples(
            labels=None,
            dense=np.zeros((64, 1), np.float32),
            ids=(np.arange(64 * count),),
            lengths=(np.full(64, count),),
        )
        for count in (*[0] * 8, 2, 1)
    ]
    timed = MeasuredBatches(iter(batches))
    assert list(timed) == batches
    assert all(0 < number < 1 for number in timed.processor_seconds(trainers=2, dim=8))
