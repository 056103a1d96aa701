"""The rivals of the embeddings' benchmark: their results are those of one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.embeddings.models import DLRM, WideAndDeep, auc, parameters_of
from tests.conformance.launch import outputs, ranks

JOB = Path(__file__).with_name("embedding_rivals_job.py")


def test_models_have_the_paper_s_parameters() -> None:
    assert parameters_of(DLRM()) == 2_962_289
    assert parameters_of(WideAndDeep()) == 136_673


def test_each_table_s_rows_reach_the_logit() -> None:
    torch.manual_seed(0)
    model = DLRM(tables=2, dim=3).double()
    rows = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    model(torch.randn(4, 13, dtype=torch.float64), rows).sum().backward()
    assert rows.grad is not None
    assert bool((rows.grad.abs().sum(dim=2) > 0).all())


def test_the_area_is_scikit_learn_s() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 500).astype(np.float32)
    logits = np.round(random.standard_normal(500) + labels, 1)  # some are equal
    assert auc(labels, logits) == pytest.approx(roc_auc_score(labels, logits), rel=1e-12)
    assert np.isnan(auc(np.ones(3, np.float32), logits[:3]))


@pytest.mark.slow
def test_rivals_train_as_one_process() -> None:
    with ranks(2, JOB, PYTHONPATH=str(JOB.parents[2])) as processes:
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0, 0], texts
    assert all("agrees" in text for text in texts)
