"""Remarks of the demo on its figures: other orders of the ranks, and predictions that were off."""

from collections.abc import Iterator

from headrace.demo.scenario import Comparison
from headrace.units import ms

OFF = 0.1
"""Difference of a measured time from the predicted one from which it is explained."""


def order_remark(comparison: Comparison) -> str:
    """Return the speed-up that other orders of the ranks would give, by predicted allreduces."""
    rings = comparison.rings
    gains = [ring_us / comparison.predicted_us for ring_us in (rings.best_us, rings.worst_us)]
    return (
        f"predicted for other orders of the ranks: Gloo's allreduces take {ms(rings.best_us)} in "
        f"the order that suits its ring best, {ms(rings.order_us)} in this one, "
        f"{ms(rings.worst_us)} in the worst; headrace's take {ms(comparison.predicted_us)} in any: "
        f"{gains[0]:.2f}x to {gains[1]:.2f}x as fast"
    )


def off_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield why predicted allreduces differ from measured ones, where they do."""
    pairs = (
        ("headrace", comparison.headrace.allreduce_us, comparison.predicted_us),
        ("Gloo", comparison.gloo.allreduce_us, comparison.rings.order_us),
    )
    for name, measured_us, predicted_us in pairs:
        off = measured_us / predicted_us - 1
        if abs(off) >= OFF:
            yield f"{name}'s allreduces are {off:+z.0%} off their prediction: {_cause(comparison)}"


def _cause(comparison: Comparison) -> str:
    if comparison.load.busy:
        return (
            f"the machine was {comparison.load.text}, and predictions are of idle processors; "
            "run the demo again when it is idle"
        )
    return (
        "the machine was idle, so the network has changed since it was measured, or processors "
        "that all ranks share cost more than is predicted"
    )
