"""The Trainer of transformers with compressed gradients: one line more than 09-trainer.py.

    pip install accelerate tensorboard transformers
    torchrun --standalone --nproc-per-node 2 examples/05-compress-trainer.py

The Trainer passes no communication hook on: a callback registers one when training begins.
"""

from datetime import timedelta
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments

from headrace.compression import trainer_callback
from headrace.torch import init_from_torchrun


class Classifier(nn.Module):
    """Two layers, with the outputs that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the logits."""
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train, and print the mean loss and the share of the bytes."""
    init_from_torchrun(timeout=timedelta(minutes=5))
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    rows = [
        {"images": image, "labels": label}
        for image, label in zip(images, torch.tensor(digits.target), strict=True)
    ]
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=not torch.cuda.is_available(),
            num_train_epochs=3,
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            ddp_find_unused_parameters=False,
            logging_steps=20,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(Classifier(), arguments, train_dataset=rows)
        with SummaryWriter(folder) as writer:
            compression = trainer_callback(trainer, "minmax:4", writer=writer)
            trainer.add_callback(compression)  # the one line
            loss = trainer.train().training_loss

    hook = compression.hook
    if hook is not None and dist.get_rank() == 0:
        figures = hook.figures()
        share = figures["sent_bytes"] / figures["plain_bytes"]
        print(f"mean loss {loss:.3f}")
        print(f"minmax:4: {share:.1%} of the uncompressed bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
