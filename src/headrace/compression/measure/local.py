"""Measurement among ranks that are started on this machine: the parent's and the ranks' side."""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.compression.errors import CompressionError
from headrace.compression.profile import CompressionProfile
from headrace.functions import folder_on_path, named_function
from headrace.job.load import LoadWatch
from headrace.launch.roles import Role, Roles
from headrace.launch.worker import Receive, Send, run_worker

EXAMPLE = "headrace.compression.measure.example:perceptron"
_ANSWER_S = 1800.0


def measure_locally(
    model: str = EXAMPLE,
    *,
    ranks: int,
    codecs: Sequence[str] = (),
    like: CompressionProfile | None = None,
    bucket_cap_mb: float = 25.0,
    steps: int = 10,
) -> CompressionProfile:
    """Start ranks on this machine, and return the profile that they measure.

    Parameters
    ----------
    model : ``module:function``; the function returns a model and a batch, or a model and a function
        from the model to the loss. A batch's loss is the output's mean square.
    codecs : to be timed (default: `headrace.compression.measure.job.CODECS`).
    like : time codecs alone, on this profile's parameters and buckets: the rest is kept.

    Raises
    ------
    CompressionError : fewer than two ranks, no such function, or no such codec.
    CommunicationError : a rank failed.
    """
    if not 2 <= ranks <= 1024:
        raise CompressionError(f"ranks is {ranks}, needs 2 to 1024")
    if steps < 3:
        raise CompressionError(f"steps is {steps}, needs at least 3")
    if bucket_cap_mb <= 0:
        raise CompressionError(f"bucket_cap_mb is {bucket_cap_mb:g}, needs more than 0")
    if like is None and model != EXAMPLE:
        with folder_on_path():  # as the ranks, which are started in this folder
            named_function(model, CompressionError)
    with tempfile.TemporaryDirectory() as folder:
        if like is not None:
            like.save(Path(folder, "like"))
        task = {
            "folder": folder,
            "model": model,
            "ranks": ranks,
            "codecs": list(codecs),
            "like": like is not None,
            "bucket_cap_mb": bucket_cap_mb,
            "steps": steps,
        }
        argv = [sys.executable, "-m", "headrace.compression.measure.local"]
        env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        roles = {
            rank: Role(name=f"rank {rank}", argv=argv, env=env, beside_prints=True)
            for rank in range(ranks)
        }
        with Roles(roles) as running:
            for rank in roles:
                running.send(rank, {**task, "rank": rank})
            while running.expect("the measurement", _ANSWER_S):
                pass
        return CompressionProfile.load(Path(folder, "profile"))


def model_and_loss(name: str, returned: object) -> tuple[Any, Any, int]:
    """Return a model, the function from it to the loss, and a batch's examples (1: not known).

    Parameters
    ----------
    name, returned : of the function that makes a model, and what it returned.

    Raises
    ------
    CompressionError : it returned something else.
    """
    import torch

    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise CompressionError(
            f"{name} returned {type(returned).__name__}, needs a model and a batch, or a model and "
            "a function from it to the loss"
        )
    model, batch = returned
    if isinstance(batch, torch.Tensor):
        return model, lambda module: module(batch).square().mean(), len(batch)
    if not callable(batch):
        raise CompressionError(
            f"{name} returned a batch of type {type(batch).__name__}, needs a tensor; or, in place "
            "of a batch, a function from the model to the loss"
        )
    return model, batch, 1


def _work(receive: Receive, send: Send) -> None:
    # torch takes seconds to import: the parent does without
    import torch
    import torch.distributed as dist

    from headrace.compression.measure.computing import time_codecs
    from headrace.compression.measure.job import CODECS, agreed_load, agreed_timings, profile_model

    task = receive()
    folder, ranks, rank = Path(task["folder"]), task["ranks"], task["rank"]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks
    )
    codecs = task["codecs"] or CODECS
    if task["like"]:
        like = CompressionProfile.load(folder / "like")
        watch = LoadWatch()
        timings = time_codecs(
            codecs, like.bucket_tensors(), ranks=ranks, rank=rank, barrier=dist.barrier
        )
        derived = {name: how for name, how in like.derived.items() if name not in timings}
        profile = replace(
            like,
            codecs={**like.codecs, **agreed_timings(timings)},
            ranks_per_host=ranks,
            provenance={
                **like.provenance,
                "codecs": f"measured: {', '.join(timings)}",
                "derived": derived,
                **agreed_load(watch.load()).to_provenance(),
            },
        )
    else:
        returned = named_function(task["model"], CompressionError)()
        model, loss_of, batch = model_and_loss(task["model"], returned)
        profile = profile_model(
            model,
            loss_of,
            name=task["model"],
            batch=batch,
            codecs=codecs,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
            bucket_cap_mb=task["bucket_cap_mb"],
            steps=task["steps"],
        )
    if rank == 0:
        profile.save(folder / "profile")
    send(done=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_worker(_work, beside_prints=True)
    sys.stdout.flush()
    os._exit(0)  # threads of torch that are about to end would abort an interpreter that ends
