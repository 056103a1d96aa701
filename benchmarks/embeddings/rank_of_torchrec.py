"""One rank of TorchRec's own training, by the environment of `torchrec`: steps without dense part.

The first message is {"rank", "ranks", "counts", "dim", "batch", "batches"}; {"steps"} is answered
by {"seconds": [of each]}. A step is that of TorchRec's pipeline, which distributes the next batch's
ids meanwhile: rows are looked up, exchanged, and updated by SGD from gradients of ones.
"""

import os
import time
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import (  # type: ignore[import-not-found]
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
)
from torchrec.distributed import DistributedModelParallel  # type: ignore[import-not-found]
from torchrec.distributed.embeddingbag import (  # type: ignore[import-not-found]
    EmbeddingBagCollectionSharder,
)
from torchrec.distributed.planner import (  # type: ignore[import-not-found]
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.train_pipeline import (  # type: ignore[import-not-found]
    TrainPipelineSparseDist,
)
from torchrec.distributed.types import ShardingType  # type: ignore[import-not-found]
from torchrec.optim.apply_optimizer_in_backward import (  # type: ignore[import-not-found]
    apply_optimizer_in_backward,
)

from benchmarks.embeddings.drawn import drawn_batches
from headrace.launch.worker import Receive, Send, run_worker

RATE = 0.01


class Sum(nn.Module):
    """Tables whose pooled rows are added up, with one dense parameter."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, ids: Any) -> tuple[Tensor, Tensor]:
        """Return the loss, twice: the pipeline takes it and what it came from."""
        loss = self.tables(ids).values().sum() * self.factor.detach()
        return loss + 0 * self.factor.sum(), loss.detach()


def sharded(task: dict[str, Any]) -> Any:
    """Return the model with its tables partitioned over ranks, table by table."""
    keys = [f"table{number}" for number in range(len(task["counts"]))]
    tables = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=key, embedding_dim=task["dim"], num_embeddings=rows, feature_names=[key]
            )
            for key, rows in zip(keys, task["counts"], strict=True)
        ],
        device=torch.device("meta"),
    )
    apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": RATE})
    model = Sum(tables)
    by_table = ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=task["ranks"], compute_device="cpu"),
        constraints=dict.fromkeys(keys, by_table),
    )
    sharders: list[Any] = [EmbeddingBagCollectionSharder()]
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)


def shares(task: dict[str, Any]) -> Iterator[Any]:
    """Yield this rank's ids of batches, the same few again and again."""
    size = task["batch"] // task["ranks"]
    start = task["rank"] * size
    keys = [f"table{number}" for number in range(len(task["counts"]))]
    batches = [
        KeyedJaggedTensor(
            keys=keys,
            values=torch.cat([torch.from_numpy(ids[start : start + size]) for ids in batch.ids]),
            lengths=torch.ones(len(keys) * size, dtype=torch.int32),
        )
        for batch in islice(drawn_batches(tuple(task["counts"]), task["batch"]), task["batches"])
    ]
    return cycle(batches)


def work(receive: Receive, send: Send) -> None:
    """Answer until the parent is gone."""
    torch.set_num_threads(1)
    task = receive()
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo", rank=task["rank"], world_size=task["ranks"])
    model = sharded(task)
    dense = [parameter for name, parameter in model.named_parameters() if "factor" in name]
    pipeline = TrainPipelineSparseDist(model, torch.optim.SGD(dense, lr=RATE), torch.device("cpu"))
    batches = shares(task)
    send(ready=torch.__version__)
    while True:
        steps = receive()["steps"]
        seconds: list[float] = []
        for _ in range(steps):
            began = time.perf_counter()
            pipeline.progress(batches)
            seconds.append(time.perf_counter() - began)
        send(seconds=seconds)


if __name__ == "__main__":
    run_worker(work)
