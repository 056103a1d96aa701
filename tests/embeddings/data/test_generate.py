"""Made clicks: frequencies of rows, hashes, labels that rows explain."""

import numpy as np
import pytest
from scipy.stats import chisquare

from headrace.embeddings import CriteoFormat, EmbeddingError, Rejects
from headrace.embeddings.data.criteo import HASHES, parse_criteo
from headrace.embeddings.data.generate import ClickSource, row_counts
from headrace.embeddings.data.skew import Skew, parse_skew

COUNT = 60_000
ROWS = 500


def drawn(text: str, rows: int = ROWS) -> np.ndarray:
    ranks = parse_skew(text).draw(rows, COUNT, np.random.default_rng(5))
    assert ranks.shape == (COUNT,)
    return np.bincount(ranks, minlength=rows)


@pytest.mark.parametrize("alpha", [0, 0.5, 1, 1.05, 2])
def test_zipf_has_its_frequencies(alpha: float) -> None:
    expected = np.arange(1.0, ROWS + 1) ** -alpha
    counts, expected = drawn(f"zipf:{alpha}"), expected / expected.sum() * COUNT
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert chisquare(counts, expected).pvalue > 1e-4


def test_the_top_rows_have_their_share_and_fall_to_the_rate_of_the_others() -> None:
    rows, share = 2000, 0.4
    counts = drawn(f"top:{share}", rows)
    top = counts[: rows // 100]
    assert top.sum() == pytest.approx(share * COUNT, rel=0.02)
    others = counts[rows // 100 :]
    assert chisquare(others).pvalue > 1e-4
    assert top[0] > 20 * others.mean()
    assert top[-1] < 3 * others.mean()
    assert (np.diff(top[:10]) < 0.1 * top[0]).all()


@pytest.mark.parametrize("text", ["uniform", "top:0.001", "zipf:0"])
def test_no_skew_is_uniform(text: str) -> None:
    assert chisquare(drawn(text)).pvalue > 1e-4


@pytest.mark.parametrize("text", ["top:1", "top:0.5", "zipf:1.2", "uniform"])
@pytest.mark.parametrize("rows", [1, 2, 99, 101])
def test_tables_of_any_size(text: str, rows: int) -> None:
    assert len(drawn(text, rows)) == rows


@pytest.mark.parametrize("text", ["", "zipf", "zipf:x", "zipf:-1", "zipf:nan", "top:2", "hot:0.5"])
def test_other_skews_are_refused(text: str) -> None:
    with pytest.raises(EmbeddingError, match="skew is"):
        parse_skew(text)
    assert str(parse_skew("zipf:1.05")) == "zipf:1.05"
    assert str(parse_skew("uniform")) == "uniform"


def test_rows_of_a_table_have_hashes_of_their_own() -> None:
    source = ClickSource(skew=Skew(kind="uniform"))
    hashes = source.hashes(3, np.arange(100_000))
    assert len(np.unique(hashes)) == 100_000
    assert hashes.max() < 1 << 32
    assert (source.hashes(4, np.arange(100)) != hashes[:100]).all()


def test_the_same_seed_makes_the_same_lines() -> None:
    def lines(seed: int) -> bytes:
        return b"".join(ClickSource(skew=parse_skew("zipf:1"), seed=seed).lines(50))

    assert lines(1) == lines(1)
    assert lines(1) != lines(2)


def test_rows_explain_the_labels() -> None:
    source = ClickSource(skew=parse_skew("zipf:1.2"), rows=row_counts((50,) * HASHES, 20))
    examples, count = parse_criteo(b"".join(source.lines(20_000)), CriteoFormat(), "", 0, Rejects())
    assert count == 20_000
    assert examples.labels is not None
    assert 0.1 < examples.labels.mean() < 0.6
    columns = [column % 997 for column in examples.ids]
    features = np.stack([column == value for column in columns for value in np.unique(column)[:20]])
    train, test = slice(0, 15_000), slice(15_000, None)
    weights = np.linalg.lstsq(
        features[:, train].T.astype(float), examples.labels[train], rcond=None
    )[0]
    scores = features[:, test].T @ weights
    positive = examples.labels[test] == 1
    ranks = scores.argsort().argsort()
    auc = (ranks[positive].mean() - (positive.sum() - 1) / 2) / (~positive).sum()
    assert auc > 0.65


def test_impossible_tables_are_refused() -> None:
    uniform = Skew(kind="uniform")
    with pytest.raises(EmbeddingError, match="rows are of 1 tables"):
        list(ClickSource(skew=uniform, rows=(5,)).lines(1))
    with pytest.raises(EmbeddingError, match="a table's rows"):
        ClickSource(skew=uniform, rows=(0,) * HASHES)


def test_the_skew_of_the_second_half_may_differ() -> None:
    """The bar `skew-change` goes from 90% of accesses to the first 1% of rows to none."""
    rows, count = 1000, 40_001
    source = ClickSource(
        skew=parse_skew("top:0.9"), later=parse_skew("uniform"), rows=(rows,), integers=0
    )
    parts = list(source.clicks(count))
    ranks = np.concatenate([part.ranks[0] for part in parts])
    firsts = [part.first for part in parts]
    assert firsts == np.cumsum([0, *(len(part.labels) for part in parts[:-1])]).tolist()
    assert len(ranks) == count
    top = ranks < rows // 100
    assert top[: count // 2].mean() == pytest.approx(0.9, abs=0.01)
    assert top[count // 2 :].mean() == pytest.approx(0.01, abs=0.005)
