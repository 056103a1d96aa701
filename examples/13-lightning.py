"""Lightning on headrace: the backend's name is an argument of its strategy.

    pip install lightning
    python examples/13-lightning.py

05-compress-lightning.py adds compressed gradients. A strategy given by its name, such as "ddp",
takes Gloo or NCCL.
"""

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.2)

    def on_train_end(self) -> None:
        """Print the backend, and whether all ranks have the same parameters."""
        checksum = torch.cat([p.detach().flatten() for p in self.parameters()]).double().sum()
        checksums = self.all_gather(checksum)
        if self.trainer.is_global_zero:
            model = type(self.trainer.strategy.model).__name__
            print(f"backend {dist.get_backend()}, model {model}")
            print(f"ranks equal: {bool((checksums == checksums[0]).all())}")


def main() -> None:
    """Train on two processes."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 32, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=2,
        strategy=DDPStrategy(process_group_backend="headrace"),  # the one argument
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
