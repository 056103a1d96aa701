"""The demo's job: an ordinary DistributedDataParallel script. ``--backend`` is all that changes.

It trains a small convolutional network on the digits images that come with scikit-learn, and
reports progress in lines of JSON. Further timings are in `headrace.demo.clock`.
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from headrace.demo import clock

HELD_OUT = 360
BATCH = 32
LEARNING_RATE = 0.01
MOMENTUM = 0.9
BUCKET_CAP_MB = 1


def network() -> nn.Sequential:
    """Return a network of 4.3 MB: light to compute, heavy to send."""
    # Smooth throughout: at a kink (of ReLU, of a maximum) the last bit of a sum can decide which
    # way a gradient goes, and two right sums of one gradient would train different networks.
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(64, 256, 3, padding=1), nn.GroupNorm(8, 256), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(256 * 2 * 2, 512), nn.LayerNorm(512), nn.GELU()),
        *(nn.Linear(512, 768), nn.LayerNorm(768), nn.GELU()),
        nn.Linear(768, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1437 images to train on and 360 held out: 8 x 8 pixels each, and labels."""
    dataset: Any = load_digits()
    images = torch.tensor(dataset.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(dataset.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def batches(data: TensorDataset) -> Iterator[list[torch.Tensor]]:
    """Yield this rank's batches without end, every epoch in another order."""
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def trainer(model: nn.Module) -> Callable[[list[torch.Tensor]], float]:
    """Return a function that takes one step with a batch and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def step(batch: list[torch.Tensor]) -> float:
        images, labels = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


@torch.no_grad()
def score(model: nn.Module, data: TensorDataset) -> dict[str, float]:
    """Return the loss, and the number of images classified right."""
    images, labels = data.tensors
    scores = model(images)
    right = int((scores.argmax(1) == labels).sum())
    loss = nn.functional.cross_entropy(scores, labels).item()
    return {"loss": loss, "right": right, "images": len(labels)}


def train() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="steps before those")
    options = parser.parse_args()

    torch.set_num_threads(1)  # all ranks share this machine's cores
    torch.manual_seed(0)
    training, held_out = digits()
    model = network()
    copied = copy.deepcopy(model)

    dist.init_process_group(options.backend)  # the one line that differs
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_CAP_MB)

    total = options.warm_up + options.steps
    source = batches(training)
    clock.emit(event="ready", ranks=dist.get_world_size())
    compute_us = clock.computing_us(trainer(copied), next(source), total)
    step = trainer(ddp)
    for number in range(total):
        batch = next(source)
        us, loss = clock.timed(step, batch)
        clock.emit(event="step", number=number, us=us, loss=loss)

    buckets = clock.bucket_bytes(ddp)
    clock.emit(
        event="result",
        compute_us=compute_us[options.warm_up :],
        bucket_bytes=buckets,
        allreduce_us=clock.allreduces_us(buckets),
        **score(model, held_out),
    )
    clock.emit_everywhere(event="weights", digest=clock.digest(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
