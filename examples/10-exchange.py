"""Bytes between processes without torch: rows from servers, and a bulk transfer in the background.

    python examples/10-exchange.py

Three processes are connected. Every rank asks all for some rows of their tables, while a checkpoint
of its own goes to the next rank in the background. docs/executor.md has the rules of messages.
"""

import multiprocessing
import secrets
from multiprocessing.connection import Connection

import numpy as np

from headrace.executor import Executor, Priority, all_to_all, receive, send

RANKS = 3
ROWS, WIDTH = 20_000, 16
LOOKUPS, LENGTHS, KEYS, VALUES, CHECKPOINT = 4, 0, 1, 2, 3  # steps, and tags of messages


def look_up(executor: Executor, table: np.ndarray, keys: list[np.ndarray]) -> list[np.ndarray]:
    """Return rows ``keys[r]`` of rank r's table, for every r: lengths, then keys, then rows."""
    ranks = range(executor.ranks)
    lengths = [np.array([len(part)]) for part in keys]
    asked = [np.empty(1, np.int64) for _ in ranks]
    all_to_all(executor, lengths, asked, LENGTHS).wait()
    to_serve = [np.empty(length[0], np.int64) for length in asked]
    all_to_all(executor, keys, to_serve, KEYS).wait()
    rows = [np.empty((len(part), WIDTH), np.float32) for part in keys]
    all_to_all(executor, [table[part] for part in to_serve], rows, VALUES, deadline_s=20).wait()
    return rows


def serve(rank: int, secret: str, parent: Connection) -> None:
    """Connect, look up rows of all tables, and check them and the checkpoint."""
    executor = Executor(rank, RANKS, secret=secret)
    parent.send(executor.address)
    executor.connect(parent.recv())
    reader = executor.statistics_reader()

    table = np.full((ROWS, WIDTH), rank, np.float32)
    copy = np.empty_like(table)
    arrived = receive(executor, copy, (rank - 1) % RANKS, CHECKPOINT)
    bulk = send(executor, table, (rank + 1) % RANKS, CHECKPOINT, priority=Priority.background)

    random = np.random.default_rng(rank)
    for _ in range(LOOKUPS):
        keys = [random.integers(0, ROWS, random.integers(0, 500)) for _ in range(RANKS)]
        rows = look_up(executor, table, keys)
        assert all((part == peer).all() for peer, part in enumerate(rows))
    arrived.wait()
    bulk.wait()
    assert (copy == (rank - 1) % RANKS).all()

    statistics = reader.read()
    sent_mb = statistics.sent_bytes.sum() / 1e6
    parent.send(f"rank {rank}: {LOOKUPS} lookups and a checkpoint, {sent_mb:.1f} MB sent")
    parent.recv()  # all are done
    executor.close()


def main() -> None:
    """Start the ranks, tell each the others' addresses, and print what they say."""
    context = multiprocessing.get_context("spawn")
    secret = secrets.token_hex(16)
    pipes = [context.Pipe() for _ in range(RANKS)]
    processes = [
        context.Process(target=serve, args=(rank, secret, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()  # so that a rank that ends early is an EOFError here
    ours = [pipe for pipe, _ in pipes]
    addresses = [pipe.recv() for pipe in ours]
    for pipe in ours:
        pipe.send(addresses)
    for pipe in ours:
        print(pipe.recv())
    for pipe in ours:
        pipe.send("done")
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
