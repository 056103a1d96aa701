"""Who probes whom when: rounds of disjoint pairs (PLink 4.1.1)."""

Pair = tuple[int, int]


def rounds(players: int) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every unordered pair of `players` meets exactly once.

    No player appears twice in a round. The circle method: one player stays, the others turn, so
    there are n - 1 rounds for even n and n for odd n (one player sits out in each).
    """
    seats: list[int | None] = list(range(players))
    if players % 2:
        seats.append(None)
    result: list[tuple[Pair, ...]] = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        result.append(
            tuple((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None)
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(result)


def local_rounds(members: tuple[tuple[int, ...], ...]) -> tuple[tuple[Pair, ...], ...]:
    """Return rounds in which every pair of one host's ranks meets once, one pair a host a round.

    `members[host]` are the ranks on that host; hosts take part side by side.
    """
    queues = [[(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]] for ranks in members]
    longest = max((len(queue) for queue in queues), default=0)
    return tuple(
        tuple(queue[index] for queue in queues if index < len(queue)) for index in range(longest)
    )
