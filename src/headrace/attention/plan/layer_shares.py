"""Heads of keys of every layer, by the loss that each layer's fewer heads add alone."""

from collections.abc import Iterator, Mapping, Sequence

_MOST_LEVELS = 7
_LAYER_TRIALS = 64
"""Plans of one layer with fewer heads, for all layers together: as many losses are measured."""
_LEAST_LOSS = 1e-6
"""Below which losses do not differ: heads that add none go in the order of what they save."""


def key_head_levels(key_value_heads: int, layers: int) -> list[int]:
    """Return the numbers of heads of keys to measure a layer with, from more to fewer.

    Evenly spaced below the layer's own number; fewer of them in a model of more layers.
    """
    levels = min(_MOST_LEVELS, max(1, _LAYER_TRIALS // layers))
    counts = {round(key_value_heads * level / (levels + 1)) for level in range(1, levels + 1)} - {
        0,
        key_value_heads,
    }
    return sorted(counts, reverse=True)


def key_heads_by_loss(
    added: Sequence[Mapping[int, float]], most: Sequence[int], sizes: Sequence[int], loss: float
) -> tuple[int, ...]:
    """Return heads of keys of every layer whose losses add up to at most so much.

    Layers give up heads one step after the other, those first that save most for the loss that they
    add. That losses of layers add up is an estimate: the plan is to be measured.

    Parameters
    ----------
    added : of every layer, heads of keys -> loss that they add where the other layers keep all.
    most : heads of keys that every layer has.
    sizes : bytes or numbers of one head of keys, of every layer.
    """
    counts = list(most)
    remaining = loss
    while steps := list(_steps(added, counts, most, sizes, remaining)):
        _, layer, count, cost = max(steps, key=lambda step: step[0])
        remaining -= cost
        counts[layer] = count
    return tuple(counts)


def _steps(
    added: Sequence[Mapping[int, float]],
    counts: Sequence[int],
    most: Sequence[int],
    sizes: Sequence[int],
    remaining: float,
) -> Iterator[tuple[float, int, int, float]]:
    """Yield the steps that are allowed: saved over added loss, layer, heads of keys, added loss."""
    for layer, losses in enumerate(added):
        current = 0.0 if counts[layer] == most[layer] else losses[counts[layer]]
        for count, loss in losses.items():
            # a smaller loss of fewer heads is by chance
            cost = max(0.0, loss - max(0.0, current))
            if count < counts[layer] and cost <= remaining:
                saved = (counts[layer] - count) * sizes[layer]
                yield saved / (cost + _LEAST_LOSS), layer, count, cost
