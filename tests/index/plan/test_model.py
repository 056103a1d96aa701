"""The throughput model: NumPy computes what torch trains; what it sees of a trace."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.index.training.network import Network
from benchmarks.index.training.train import Data, forest_arrays, grow
from headrace.errors import ArtifactError
from headrace.index.configuration import Configuration
from headrace.index.plan.forest import forest_output
from headrace.index.plan.grid import grid
from headrace.index.plan.inputs import (
    BUCKETS,
    configuration_input,
    image_input,
    of_inserts,
    of_reads,
    vector_input,
)
from headrace.index.plan.model import CENTRES, FOREST_SHARE, ThroughputModel, load_model, save_model
from tests.index.plan.models import profile, random_model

ENCODING = profile(erases=0.1).encoding


def test_numpy_computes_what_torch_does() -> None:
    torch.manual_seed(0)
    image, vector = image_input(ENCODING), vector_input(ENCODING)
    networks = [Network(len(vector)).eval() for _ in range(2)]
    arrays = {"mean": np.full(len(vector), 0.5), "scale": np.full(len(vector), 2.0)}
    arrays |= {"low": np.full(len(vector), -1.0), "high": np.full(len(vector), 3.0)}
    for place, network in enumerate(networks):
        arrays |= {f"{place}.{name}": each.numpy() for name, each in network.state_dict().items()}
    found = ThroughputModel(arrays, {}).predict(ENCODING, grid())
    rows = torch.tensor(configuration_input(grid()))
    scaled = torch.tensor((vector.clip(-1, 3) - 0.5) / 2)[None]
    with torch.no_grad():
        outputs = [network(torch.tensor(image)[None], scaled, rows) for network in networks]
    classes = np.mean([logits.softmax(dim=-1)[0].numpy() for logits, _ in outputs], axis=0)
    sizes = np.mean([size[0].numpy() for _, size in outputs], axis=0)
    assert np.allclose(np.log2(found.operations_per_s), classes @ CENTRES, atol=1e-3)
    assert np.allclose(np.log2(found.bytes_per_key), sizes, atol=1e-3)


def data_of(random: np.random.Generator, traces: int) -> Data:
    return Data(
        image=np.zeros((traces, 2, 64, 64), dtype=np.float32),
        vector=random.normal(size=(traces, len(vector_input(ENCODING)))).astype(np.float32),
        per_s=2 ** random.uniform(20, 24, (traces, len(grid()))),
        bytes_per_key=random.uniform(20, 30, (traces, len(grid()))),
        families=np.array(["tailed"] * traces),
        configurations=grid(),
    )


def test_numpy_computes_what_the_forest_does() -> None:
    random = np.random.default_rng(1)
    forest = grow(data_of(random, 40), trees=12)
    vectors = data_of(random, 10).vector
    wanted = forest.predict(vectors)
    arrays = {name: each.astype(np.float32) for name, each in forest_arrays(forest).items()}
    found = np.stack([forest_output(arrays, each) for each in vectors])
    assert np.allclose(found, wanted, atol=0.02)  # outputs are kept in 16 bits
    plain = random_model()
    joined = ThroughputModel({**plain._arrays, **arrays}, {}, grid())
    other = [*grid(), Configuration(leaf="log", fragment_keys=96)]
    assert np.array_equal(
        joined.predict(ENCODING, other).operations_per_s,
        plain.predict(ENCODING, other).operations_per_s,
    ), "a forest predicts the configurations that it was trained for"
    ranked = np.log2(joined.predict(ENCODING, grid()).operations_per_s)
    networks = np.log2(plain.predict(ENCODING, grid()).operations_per_s)
    relative = forest_output(arrays, vector_input(ENCODING))[: len(grid())]
    mixed = (1 - FOREST_SHARE) * networks + FOREST_SHARE * relative
    assert np.allclose(ranked - ranked.mean(), mixed - mixed.mean(), atol=1e-6)
    larger = [replace(each, fragments=max(each.fragments, 1 << 18)) for each in grid()[:12]]
    assert np.array_equal(
        joined.predict(ENCODING, larger).operations_per_s,
        joined.predict(ENCODING, grid()[:12]).operations_per_s,
    )


def test_a_model_is_kept_in_a_file(tmp_path: Path) -> None:
    arrays = {name: values.astype(np.float32) for name, values in random_model()._arrays.items()}
    save_model(tmp_path / "model.npz", arrays, {"data": "none"}, ())
    found = load_model(tmp_path / "model.npz")
    assert found.provenance == {"data": "none"}
    assert found.digest == ThroughputModel(arrays, {}).digest
    (tmp_path / "model.npz").write_bytes(b"no")
    with pytest.raises(ArtifactError, match="is no throughput model"):
        load_model(tmp_path / "model.npz")


def test_equal_rows_of_leaves_are_written_once(tmp_path: Path) -> None:
    """They took 1.5 of the 3.3 MB of the shipped model, which a wheel has to hold."""
    leaves = np.repeat(np.float16([[1, -0.0], [1, 0.0], [np.nan, 2]]), [500, 1, 500], axis=0)
    arrays = {**random_model()._arrays, "forest.value": leaves}
    save_model(tmp_path / "model.npz", arrays, {})
    with np.load(tmp_path / "model.npz") as stored:
        assert len(stored["forest.value"]) == 3
    loaded = load_model(tmp_path / "model.npz")._arrays
    assert loaded.keys() == arrays.keys()
    assert loaded["forest.value"].tobytes() == leaves.astype(np.float32).tobytes()


def test_every_configuration_has_rows_of_its_own_fields() -> None:
    rows = configuration_input(grid())
    assert rows.shape == (len(grid()), len(BUCKETS))
    starts = np.cumsum([0, *BUCKETS.values()])
    assert (rows >= starts[:-1]).all()
    assert (rows < starts[1:]).all()
    assert len(np.unique(rows, axis=0)) >= len(grid()) - 2
    extremes = [
        Configuration(leaf="log", fragment_keys=8, fragments=2, initial_fragments=2, fill=0.3),
        Configuration(fragment_keys=1 << 15, fragments=1 << 20, initial_fragments=1 << 20),
        Configuration(leaf="gapped", max_search=1e9, max_shifts=1e9, leaf_keys=1 << 16),
        Configuration(leaf="gapped", max_search=0, max_shifts=0, leaf_keys=16, fill=0.98),
    ]
    assert (configuration_input(extremes) < starts[1:]).all()


def test_reads_and_inserts_alone() -> None:
    reads, inserts = of_reads(ENCODING), of_inserts(ENCODING)
    assert reads.image[:, :, 1].sum() == inserts.image[:, :, 0].sum() == 0
    assert reads.image.sum() == ENCODING.image.sum()
    assert reads.features["find_share"] == inserts.features["insert_share"] == 1
    assert reads.features["erase_share"] == 0
    assert reads.features["log2_loaded"] == ENCODING.features["log2_loaded"]
    assert np.isfinite(vector_input(inserts)).all()
