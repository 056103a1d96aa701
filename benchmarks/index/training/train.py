"""Train the throughput model on what `collect` has kept, and write it into the package.

    PYTHONPATH=. .venv/bin/python -m benchmarks.index.training.train

First each fold of families is held out in turn, and what a choice by the others' model costs there
is printed: of the first one, of the best of the first six (what trials find), of a choice by the
mean alone, and of the leaf types. Then networks of several seeds are trained on everything.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.index.training.collect import FOLDER
from benchmarks.index.training.generators import FAMILIES
from benchmarks.index.training.network import Network
from headrace.errors import ArtifactError
from headrace.fields import Field
from headrace.index.configuration import Configuration
from headrace.index.plan import model as plan_model
from headrace.index.plan.inputs import configuration_input
from headrace.index.plan.model import CENTRES, save_model

MODEL = Path(plan_model.__file__).with_name("model.npz")
TOP = 6
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
    return Data(
        image=np.stack([row["image"] for row in rows]),
        vector=np.stack([row["vector"] for row in rows]),
        per_s=np.stack([row["per_s"] for row in rows]),
        bytes_per_key=np.stack([row["bytes_per_key"] for row in rows]),
        families=np.array([json.loads(str(row["drawn"]))["family"] for row in rows]),
        configurations=[
            Configuration.from_field(Field(each, "grid", ArtifactError))
            for each in json.loads(grid)
        ],
    )


def normal(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the scale of each input."""
    return vectors.mean(axis=0), vectors.std(axis=0).clip(0.02)


def targets(per_s: torch.Tensor) -> torch.Tensor:
    """Return probabilities of classes around log2 of the rates."""
    centres = torch.tensor(CENTRES, dtype=torch.float32)
    step = CENTRES[1] - CENTRES[0]
    distance = (per_s.log2()[..., None] - centres) / (_WIDTH * step)
    return (-0.5 * distance**2).softmax(dim=-1)


def train(data: Data, seed: int, epochs: int) -> tuple[Network, np.ndarray, np.ndarray]:
    """Return a network trained on the data, and the mean and scale of its vectors."""
    torch.manual_seed(seed)
    mean, scale = normal(data.vector)
    image = torch.tensor(data.image)
    vector = torch.tensor(((data.vector - mean) / scale).clip(-5, 5), dtype=torch.float32)
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
    return network.eval(), mean, scale


def predict(
    networks: Sequence[tuple[Network, np.ndarray, np.ndarray]], data: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Return log2 of the rates and of the bytes per key, the mean of the networks."""
    rates, sizes = [], []
    buckets = torch.tensor(configuration_input(data.configurations))
    for network, mean, scale in networks:
        vector = torch.tensor(((data.vector - mean) / scale).clip(-5, 5), dtype=torch.float32)
        with torch.no_grad():
            logits, found = network(torch.tensor(data.image), vector, buckets)
        rates.append(logits.softmax(dim=-1).numpy() @ CENTRES)
        sizes.append(found.numpy())
    return np.mean(rates, axis=0), np.mean(sizes, axis=0)


def losses(predicted: np.ndarray, per_s: np.ndarray, top: int) -> np.ndarray:
    """Return 1 - the best rate of the first `top` by prediction over the best of all."""
    order = np.argsort(-predicted, axis=1)[:, :top]
    return 1 - np.take_along_axis(per_s, order, axis=1).max(axis=1) / per_s.max(axis=1)


def cross_validate(data: Data, folds: int, seeds: int, epochs: int) -> dict[str, float]:
    """Print and return what choices for held-out families cost."""
    first, tried, by_mean, errors, sizes = [], [], [], [], []
    for fold in range(folds):
        held = np.isin(data.families, FAMILIES[fold::folds])
        known, other = data.part(~held), data.part(held)
        networks = [train(known, seed, epochs) for seed in range(seeds)]
        rates, bytes_ = predict(networks, other)
        first.append(losses(rates, other.per_s, 1))
        tried.append(losses(rates, other.per_s, TOP))
        usual = np.log2(known.per_s) - np.log2(known.per_s).mean(axis=1, keepdims=True)
        usual = np.broadcast_to(usual.mean(axis=0), other.per_s.shape)
        by_mean.append(losses(usual, other.per_s, TOP))
        ranked = rates - rates.mean(axis=1, keepdims=True)
        truth = np.log2(other.per_s)
        errors.append(np.abs(ranked - truth + truth.mean(axis=1, keepdims=True)).ravel())
        sizes.append(np.abs(2 ** (bytes_ - np.log2(other.bytes_per_key)) - 1).ravel())
        print(f"fold {fold}: {FAMILIES[fold::folds]}: {summary(first[-1])}; {summary(tried[-1])}")
    found = {
        "traces": float(len(data.families)),
        **describe("first", np.concatenate(first)),
        **describe(f"best_of_{TOP}", np.concatenate(tried)),
        **describe(f"best_of_{TOP}_by_mean", np.concatenate(by_mean)),
        "median_error_log2": float(np.median(np.concatenate(errors))),
        "median_error_bytes": float(np.median(np.concatenate(sizes))),
    }
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


def summary(loss: np.ndarray) -> str:
    """Return the same as a line."""
    return f"loss {loss.mean():.3f}, worst {loss.max():.3f}, {(loss <= 0.05).mean():.2f} within 5%"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--output", type=Path, default=MODEL)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=4, help="networks that are averaged")
    parser.add_argument("--folds", type=int, default=5, help="0: no held-out families")
    parser.add_argument("--machine", default="", help="where the data was collected")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.folder)
    found = cross_validate(data, options.folds, 2, options.epochs) if options.folds else {}
    networks = [train(data, seed, options.epochs) for seed in range(options.seeds)]
    arrays = {"mean": networks[0][1], "scale": networks[0][2]}
    for place, (network, _, _) in enumerate(networks):
        for name, values in network.state_dict().items():
            arrays[f"{place}.{name}"] = values.numpy()
    provenance = {
        "data": f"{len(data.families)} traces of {', '.join(FAMILIES)}, "
        f"{len(data.configurations)} configurations each",
        "machine": options.machine,
        "script": "benchmarks/index/training",
        "held_out": found,
    }
    save_model(
        options.output,
        {name: values.astype(np.float32) for name, values in arrays.items()},
        provenance,
    )
    print(f"wrote {options.output}, {options.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
