"""Saved states of error feedback, and what of them each rank of another group goes on with."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.compression.codecs.codec import State
from headrace.compression.errors import CompressionError
from headrace.compression.families import FAMILIES

WeightedStates = Sequence[tuple[float, Mapping[str, Any]]]
"""Saved states, and the weight of each one's residuals."""


def residual_weights(rank: int, ranks: int, old_ranks: int) -> dict[int, float]:
    """Return the weights of old ranks' residuals in the residual of a rank.

    Rank r of n stands for the interval from r/n to (r+1)/n of the job's data, and its residual is
    the average of the old ones over its interval. So a rank's weights add up to 1, which leaves its
    residual as large beside its gradients as before, and an old rank's to ``ranks / old_ranks``,
    which keeps the mean over the ranks.
    """
    begin, end = rank * old_ranks, (rank + 1) * old_ranks  # in 1 / (ranks old_ranks) of the data
    return {
        old: (min(end, (old + 1) * ranks) - max(begin, old * ranks)) / old_ranks
        for old in range(begin // ranks, -(-end // ranks))
    }


def choose_states(
    states: Any, *, rank: int, ranks: int
) -> tuple[WeightedStates, Mapping[str, Any]]:
    """Return the states whose residuals a rank averages, and the one whose other state it takes.

    Parameters
    ----------
    states : one or a sequence of them, each with its `rank` and the number of `ranks`; see
        `Averager.load_state_dict`. Several of one rank are of replicas of a shard, each with their
        number (`holders`; states of earlier versions lack it): their mean over all is kept.

    Raises
    ------
    CompressionError : states are missing or of several steps, or what is given is none.
    """
    saved = [states] if isinstance(states, Mapping) else states
    if isinstance(saved, str) or not isinstance(saved, Sequence):
        raise CompressionError(f"state is {saved!r}, needs what state_dict() returned")
    for state in saved:
        if not (isinstance(state, Mapping) and {"rank", "ranks", "step"} <= {*state}):
            raise CompressionError("state is not a hook's, needs what its state_dict() returned")
    if len(steps := {int(state["step"]) for state in saved}) > 1:
        raise CompressionError(
            f"states are of steps {', '.join(map(str, sorted(steps)))}, needs those of one: all "
            "ranks save after the same step"
        )
    saved = sorted(saved, key=lambda state: state["rank"])
    old = int(saved[0]["ranks"]) if saved else 0
    replicas: dict[int, list[Mapping[str, Any]]] = {}  # of a rank, each with residuals of its own
    for state in saved:
        replicas.setdefault(state["rank"], []).append(state)
    for number, alike in replicas.items():
        holders = int(alike[0].get("holders", len(alike)))
        if len(alike) > holders:
            raise CompressionError(
                f"{len(alike)} states are of rank {number}, needs {holders}: with tensor "
                "parallelism those of the ranks that hold this rank's part of the model"
            )
    if old == ranks and rank in replicas:
        return _mean_of([(1.0, replicas[rank])]), replicas[rank][0]
    if not saved or list(replicas) != list(range(old)):
        raise CompressionError(
            f"states are of ranks {[s['rank'] for s in saved]} of {old}, this is rank "
            f"{rank} of {ranks}: needs this rank's of as many, or the list of all"
        )
    weights = residual_weights(rank, ranks, old)
    sources = [(weight, replicas[source]) for source, weight in weights.items()]
    return _mean_of(sources), replicas[rank % old][0]


def _mean_of(sources: Sequence[tuple[float, Sequence[Mapping[str, Any]]]]) -> WeightedStates:
    """Share out the weight of a rank among the states of its replicas."""
    return [(weight / len(states), state) for weight, states in sources for state in states]


def weighted_sum(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Return the sum of weighted tensors, on the first one's device."""
    total = parts[0][1].to(torch.float32) * parts[0][0]
    for weight, part in parts[1:]:
        total.add_(part.to(total.device), alpha=weight)
    return total


def averaged_states(name: str, sources: WeightedStates) -> dict[str, list[State]]:
    """Return a parameter's states of vector codecs, which are sums of gradients as residuals are.

    Those of a family that not all ranks have are left out: it begins anew.
    """
    averaged: dict[str, list[State]] = {}
    entries = [(weight, source["parameters"].get(name)) for weight, source in sources]
    states = [(weight, entry["states"]) for weight, entry in entries if entry is not None]
    families = [{f for f in s if not FAMILIES[f].matrices} for _, s in states]
    for family in set.intersection(*families) if families else ():
        pieces = zip(*(own[family] for _, own in states), strict=True)
        averaged[family] = [
            {
                key: weighted_sum(
                    [(weight, s[key]) for (weight, _), s in zip(states, piece, strict=True)]
                )
                for key, value in piece[0].items()
                if isinstance(value, Tensor) and all(key in s for s in piece)
            }
            for piece in pieces
        ]
    return averaged


def copies(states: Sequence[State], device: torch.device | None = None) -> list[State]:
    """Return copies of states, on a device if one is given."""
    return [
        {k: v.to(device, copy=True) if isinstance(v, Tensor) else v for k, v in state.items()}
        for state in states
    ]
