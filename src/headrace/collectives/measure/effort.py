"""How hard to look: what measuring costs, and how good it gets."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[str, float], None]
"""Called with what is being done and the share (0 to 1) of the whole that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to look.

    Attributes
    ----------
    tournament_us, quiet_us, sharing_us : how long one bulk transfer should take at each stage.
    most_bytes : largest bulk transfer, whatever the rate.
    repeats : runs of every transfer that counts.
    all_pairs_up_to : probe every ordered pair of hosts quietly up to this many hosts.
    pairs_per_kind : else this many for each ordered pair of groups.
    second_looks : links that may be probed again because they look worse than their kind.
    local_rounds : rounds of pairs of ranks that share a host.
    valid_for_s : how long the profile is worth something.
    """

    tournament_us: float = 20_000.0
    quiet_us: float = 40_000.0
    sharing_us: float = 30_000.0
    most_bytes: float = 8e6
    repeats: int = 3
    all_pairs_up_to: int = 6
    pairs_per_kind: int = 2
    second_looks: int = 12
    local_rounds: int = 6
    valid_for_s: float = 3600.0
