"""Ray Train on headrace: the backend's name is an argument of its configuration.

    pip install 'ray[train]'
    python examples/14-ray-train.py

Here Ray starts on this machine alone, and ends with the script. On a cluster every node has
headrace installed: its workers know the backend by the package's entry point.
"""

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_worker() -> dict[str, object]:
    """Train, and return the backend and whether all workers have the same parameters."""
    torch.manual_seed(train.get_context().get_world_rank())  # DDP begins with rank 0's parameters
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    loader = prepare_data_loader(DataLoader(dataset, 32, shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()

    checksum = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()
    lowest, highest = checksum.clone(), checksum.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return {
        "loss": loss.item(),
        "backend": dist.get_backend(),
        "model": type(model).__name__,
        "ranks equal": bool(lowest == highest),
    }


def main() -> None:
    """Train on two workers, and print what the first one returns."""
    ray.init("local", num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train_worker,
        torch_config=TorchConfig(backend="headrace"),  # the one argument
        scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
    )
    outcome = trainer.fit().return_value
    print(f"loss {outcome['loss']:.3f}")
    print(f"backend {outcome['backend']}, model {outcome['model']}")
    print(f"ranks equal: {outcome['ranks equal']}")
    ray.shutdown()


if __name__ == "__main__":
    main()
