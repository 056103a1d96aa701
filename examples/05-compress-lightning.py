"""Lightning with compressed gradients: a state and a hook for its strategy.

    pip install lightning
    python examples/05-compress-lightning.py

On the CPU, Lightning's strategy does not register the hook that it is given: the module does it
when training begins.
"""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from headrace.compression import hook_pair


class Classifier(lightning.LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.state, self.hook = hook_pair(self, "minmax:4")

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.2)

    def on_train_start(self) -> None:
        """Register the hook on the CPU."""
        model = self.trainer.strategy.model
        if isinstance(model, DistributedDataParallel) and self.device.type == "cpu":
            model.register_comm_hook(self.state, self.hook)


def main() -> None:
    """Train, and print the share of the bytes."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images, torch.tensor(digits.target)), 32, shuffle=True)
    module = Classifier()
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=2,
        strategy=DDPStrategy(ddp_comm_state=module.state, ddp_comm_hook=module.hook),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, loader)
    figures = module.state.hook.figures()
    if trainer.is_global_zero:
        share = figures["sent_bytes"] / figures["plain_bytes"]
        print(f"minmax:4: {share:.1%} of the uncompressed bytes")


if __name__ == "__main__":
    main()
