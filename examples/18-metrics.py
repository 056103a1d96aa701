"""Metrics of all capabilities at one address, for Prometheus to scrape.

    pip install 'headrace[metrics,torch]'
    python examples/18-metrics.py

The metrics of a process group are there too where HEADRACE_METRICS names the same port; attention
and embeddings have `AttentionMetrics` and `EmbeddingMetrics`. In place of a port, a file such as
/run/headrace/{rank}.prom is for node_exporter's textfile collector.
"""

import sys
import tempfile
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headrace import Index
from headrace.compression import ddp_hook
from headrace.index import IndexAdaptation, IndexMetrics
from headrace.job.metrics import start_metrics
from headrace.memory import MemoryMetrics, fit


def main(port: int = 9400) -> None:
    """Train a step, look keys up, and print what Prometheus reads."""
    store = dist.FileStore(f"{tempfile.mkdtemp()}/store", 1)
    dist.init_process_group("headrace", store=store, rank=0, world_size=1)

    images, labels = torch.randn(64, 128), torch.randint(10, (64,))
    network = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    fitted = fit(network, (images, labels), "1MiB", loss=nn.CrossEntropyLoss(), ddp=True)
    model = DistributedDataParallel(fitted)
    hook = ddp_hook(model, "minmax:4")
    adaptation = IndexAdaptation(Index(np.arange(10_000), np.arange(10_000)))

    metrics = [hook.metrics(), MemoryMetrics(0, fitted), IndexMetrics(0, adaptation)]
    served = start_metrics(metrics, port)  # the one call
    assert served is not None, f"port {port} is in use"

    model(images, labels).backward()
    assert adaptation.index[5000] == 5000
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        print(answer.read().decode())
    served.close()
    adaptation.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
