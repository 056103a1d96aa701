"""Train the throughput model on what `collect` has kept, and write it into the package.

    PYTHONPATH=. .venv/bin/python -m benchmarks.index.training.train

First each fold of families is held out in turn, and what a choice by the others' model costs there
is printed: of the first one, and of the best of the first twelve (what trials find), with rankings
by the mean over traces, by networks, by a forest, and by both. Then all is trained on everything.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.index.training.collect import FOLDER
from benchmarks.index.training.generators import FAMILIES
from benchmarks.index.training.network import Network
from headrace.artifact import Artifact
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.index.configuration import Configuration
from headrace.index.plan import model as plan_model
from headrace.index.plan.forest import PARTS
from headrace.index.plan.inputs import configuration_input, image_input, vector_input
from headrace.index.plan.model import (
    CENTRES,
    FOREST_SHARE,
    LAST_LEVEL_CACHE,
    TRAINED_CACHE_BYTES,
    save_model,
)
from headrace.index.profile import IndexProfile, TraceEncoding

MODEL = Path(plan_model.__file__).with_name("model.npz")
Normal = Mapping[str, np.ndarray]
"""By name: least and greatest value, mean and scale of each input."""

_FEW = 12  # trials, for which seconds are enough
_WIDTH = 1.2
"""Standard deviation of a target over the classes: a rate near a border belongs to both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Traces (rows) with results of configurations (columns)."""

    image: np.ndarray
    vector: np.ndarray
    per_s: np.ndarray
    bytes_per_key: np.ndarray
    families: np.ndarray
    configurations: Sequence[Configuration]

    def part(self, chosen: np.ndarray) -> "Data":
        """Return some of the traces."""
        return Data(
            image=self.image[chosen],
            vector=self.vector[chosen],
            per_s=self.per_s[chosen],
            bytes_per_key=self.bytes_per_key[chosen],
            families=self.families[chosen],
            configurations=self.configurations,
        )


def load(folder: Path) -> Data:
    """Read all files of a folder; those of another grid are left out."""
    files = sorted(folder.glob("[0-9]*.npz"))
    rows: list[dict[str, Any]] = [dict(np.load(file)) for file in files if ".part" not in file.name]
    grid = str(rows[-1]["configurations"])
    rows = [row for row in rows if str(row["configurations"]) == grid]
    encodings = [encoding_of(row) for row in rows]
    return Data(
        image=np.stack([image_input(each) for each in encodings]),
        vector=np.stack([vector_input(each) for each in encodings]),
        per_s=np.stack([row["per_s"] for row in rows]),
        bytes_per_key=np.stack([row["bytes_per_key"] for row in rows]),
        families=np.array([json.loads(str(row["drawn"]))["family"] for row in rows]),
        configurations=[
            Configuration.from_field(Field(each, "grid", ArtifactError))
            for each in json.loads(grid)
        ],
    )


def encoding_of(row: Mapping[str, np.ndarray]) -> TraceEncoding:
    """Return the encoding in a file of `collect`."""
    tables: dict[str, dict[str, np.ndarray]] = {}
    for name, values in row.items():
        table, _, column = name.partition(".")
        if column:
            tables.setdefault(table, {})[column] = values
    head = {"features": json.loads(str(row["features"]))}
    return TraceEncoding.from_artifact(
        Artifact(kind=IndexProfile.KIND, schema=IndexProfile.SCHEMA, head=head, tables=tables),
        "row",
    )


def normal(vectors: np.ndarray) -> Normal:
    """Return the range, the mean and the scale of each input."""
    return {
        "low": vectors.min(axis=0),
        "high": vectors.max(axis=0),
        "mean": vectors.mean(axis=0),
        "scale": vectors.std(axis=0).clip(0.02),
    }


def scaled(vectors: np.ndarray, by: Normal) -> torch.Tensor:
    """Return the inputs of networks."""
    clipped = vectors.clip(by["low"], by["high"])
    return torch.tensor((clipped - by["mean"]) / by["scale"], dtype=torch.float32)


def targets(per_s: torch.Tensor) -> torch.Tensor:
    """Return probabilities of classes around log2 of the rates."""
    centres = torch.tensor(CENTRES, dtype=torch.float32)
    step = CENTRES[1] - CENTRES[0]
    distance = (per_s.log2()[..., None] - centres) / (_WIDTH * step)
    return (-0.5 * distance**2).softmax(dim=-1)


def train(data: Data, seed: int, epochs: int) -> tuple[Network, Normal]:
    """Return a network trained on the data, and the ranges and scales of its vectors."""
    torch.manual_seed(seed)
    by = normal(data.vector)
    image = torch.tensor(data.image)
    vector = scaled(data.vector, by)
    buckets = torch.tensor(configuration_input(data.configurations))
    rates = torch.tensor(data.per_s, dtype=torch.float32)
    classes, sizes = targets(rates), torch.tensor(np.log2(data.bytes_per_key), dtype=torch.float32)
    relative = rates.log2() - rates.log2().mean(dim=1, keepdim=True)
    network = Network(vector.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=2e-2)
    batch = 16
    steps = epochs * -(-len(image) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    centres = torch.tensor(CENTRES, dtype=torch.float32)
    for _ in range(epochs):
        for rows in torch.randperm(len(image)).split(batch):
            flipped = image[rows] + 0.05 * torch.randn_like(image[rows])
            noisy = vector[rows] + 0.1 * torch.randn_like(vector[rows])
            logits, found = network(flipped, noisy, buckets)
            expected = logits.softmax(dim=-1) @ centres
            ranked = expected - expected.mean(dim=1, keepdim=True)
            loss = (
                -(classes[rows] * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
                + 4 * (ranked - relative[rows]).square().mean()
                + (found - sizes[rows]).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval(), by


def grow(data: Data, trees: int = 120) -> ExtraTreesRegressor:
    """Return a forest that predicts log2 of rates, less their mean, and log2 of bytes per key."""
    rates = np.log2(data.per_s)
    outputs = np.concatenate(
        [rates - rates.mean(axis=1, keepdims=True), np.log2(data.bytes_per_key)], axis=1
    )
    forest = ExtraTreesRegressor(
        trees, min_samples_leaf=2, max_features=0.5, max_leaf_nodes=160, random_state=0
    )
    return forest.fit(data.vector, outputs)


def forest_arrays(forest: ExtraTreesRegressor) -> dict[str, np.ndarray]:
    """Return a forest as the arrays of `headrace.index.plan.forest`."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in PARTS}
    nodes = leaves = 0
    for each in forest.estimators_:
        tree = each.tree_
        is_leaf = tree.children_left < 0
        parts["feature"].append(np.where(is_leaf, -1, tree.feature))
        parts["threshold"].append(tree.threshold)
        parts["left"].append(np.where(is_leaf, 0, tree.children_left + nodes))
        parts["right"].append(np.where(is_leaf, 0, tree.children_right + nodes))
        parts["leaf"].append(np.where(is_leaf, np.cumsum(is_leaf) - 1 + leaves, 0))
        parts["root"].append(np.array([nodes]))
        parts["value"].append(tree.value[is_leaf, :, 0].astype(np.float16))
        nodes, leaves = nodes + len(is_leaf), leaves + int(is_leaf.sum())
    return {f"forest.{name}": np.concatenate(values) for name, values in parts.items()}


def predict(
    networks: Sequence[tuple[Network, Normal]], data: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Return log2 of the rates and of the bytes per key, the mean of the networks."""
    rates, sizes = [], []
    buckets = torch.tensor(configuration_input(data.configurations))
    for network, by in networks:
        with torch.no_grad():
            logits, found = network(torch.tensor(data.image), scaled(data.vector, by), buckets)
        rates.append(logits.softmax(dim=-1).numpy() @ CENTRES)
        sizes.append(found.numpy())
    return np.mean(rates, axis=0), np.mean(sizes, axis=0)


def losses(predicted: np.ndarray, per_s: np.ndarray, top: int) -> np.ndarray:
    """Return 1 - the best rate of the first `top` by prediction over the best of all."""
    order = np.argsort(-predicted, axis=1)[:, :top]
    return 1 - np.take_along_axis(per_s, order, axis=1).max(axis=1) / per_s.max(axis=1)


def cross_validate(data: Data, folds: int, seeds: int, epochs: int) -> dict[str, float]:
    """Print and return what choices for held-out families cost, by several rankings."""
    rankings = {name: np.zeros(data.per_s.shape) for name in ("mean", "networks", "forest")}
    sizes = np.zeros(data.per_s.shape)
    for fold in range(folds):
        held = np.isin(data.families, FAMILIES[fold::folds])
        known, other = data.part(~held), data.part(held)
        networks = [train(known, seed, epochs) for seed in range(seeds)]
        rates, by_networks = predict(networks, other)
        forest, by_forest = np.split(grow(known).predict(other.vector), 2, axis=1)
        usual = np.log2(known.per_s)
        rankings["mean"][held] = (usual - usual.mean(axis=1, keepdims=True)).mean(axis=0)
        rankings["networks"][held] = rates - rates.mean(axis=1, keepdims=True)
        rankings["forest"][held] = forest
        sizes[held] = (by_networks + by_forest) / 2
        print(f"fold {fold}: {', '.join(FAMILIES[fold::folds])} held out", flush=True)
    rankings["both"] = (1 - FOREST_SHARE) * rankings["networks"] + FOREST_SHARE * rankings["forest"]
    truth = np.log2(data.per_s)
    truth -= truth.mean(axis=1, keepdims=True)
    found = {"traces": float(len(truth))}
    for name, ranking in rankings.items():
        found[f"{name}_error_log2"] = float(np.abs(ranking - truth).mean())
        found |= describe(f"{name}_first", losses(ranking, data.per_s, 1))
        found |= describe(f"{name}_best_of_{_FEW}", losses(ranking, data.per_s, _FEW))
    found["error_bytes_log2"] = float(np.abs(sizes - np.log2(data.bytes_per_key)).mean())
    for name, value in found.items():
        print(f"{name} {value:.4g}")
    return found


def describe(name: str, loss: np.ndarray) -> dict[str, float]:
    """Return the mean, the worst, and the share of traces within 5% of the best."""
    return {
        f"{name}_mean_loss": float(loss.mean()),
        f"{name}_worst_loss": float(loss.max()),
        f"{name}_within_5_percent": float((loss <= 0.05).mean()),
    }


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return an array of the file: float16 as it is, all else as float32."""
    return values if values.dtype == np.float16 else values.astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--output", type=Path, default=MODEL)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4, help="networks that are averaged")
    parser.add_argument("--folds", type=int, default=5, help="0: no held-out families")
    parser.add_argument("--machine", default="", help="where the data was collected")
    parser.add_argument(
        "--cache-bytes", type=int, default=TRAINED_CACHE_BYTES, help="its largest cache"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.folder)
    found = cross_validate(data, options.folds, 2, options.epochs) if options.folds else {}
    networks = [train(data, seed, options.epochs) for seed in range(options.seeds)]
    arrays = {**networks[0][1], **forest_arrays(grow(data))}
    for place, (network, _) in enumerate(networks):
        for name, values in network.state_dict().items():
            arrays[f"{place}.{name}"] = values.numpy()
    provenance = {
        "data": f"{len(data.families)} traces of {', '.join(FAMILIES)}, "
        f"{len(data.configurations)} configurations each",
        "machine": options.machine,
        LAST_LEVEL_CACHE: options.cache_bytes,
        "script": "benchmarks/index/training",
        "held_out": found,
    }
    save_model(
        options.output,
        {name: narrowed(values) for name, values in arrays.items()},
        provenance,
        data.configurations,
    )
    print(f"wrote {options.output}, {options.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
