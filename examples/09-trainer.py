"""The Trainer of transformers on headrace: the process group is made before its arguments.

    pip install accelerate transformers
    torchrun --standalone --nproc-per-node 2 examples/09-trainer.py

`ddp_backend` has a closed list, and stays unset: the Trainer takes the process group that exists.
`ddp_timeout` has no effect then; the timeout is the one below. Without a GPU it needs
`use_cpu=True`: else it trains every rank by itself.
"""

from datetime import timedelta
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from transformers import Trainer, TrainingArguments

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
    """Train, and print whether all ranks have the same parameters."""
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
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(Classifier(), arguments, train_dataset=rows)
        loss = trainer.train().training_loss

    wrapped = trainer.model_wrapped
    checksum = torch.cat([p.detach().flatten() for p in wrapped.parameters()]).double().sum()
    lowest, highest = checksum.clone(), checksum.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"mean loss {loss:.3f}")
        print(f"backend {dist.get_backend()}, model {type(wrapped).__name__}")
        print(f"ranks equal: {bool(lowest == highest)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
