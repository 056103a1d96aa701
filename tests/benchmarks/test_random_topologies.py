"""The random topologies of the synthesis benchmark are what it says: connected, fixed, varied."""

from collections import Counter

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from benchmarks.synthesis.random_topologies import SEEDS, random_topology


def test_every_one_is_strongly_connected_and_the_same_each_time() -> None:
    kinds: Counter[str] = Counter()
    for seed in SEEDS:
        made = random_topology(seed)
        assert made.digest == random_topology(seed).digest
        assert 8 <= made.ranks <= 32
        columns = made.columns
        graph = csr_array(
            (np.ones(len(columns.src)), (columns.src, columns.dst)), shape=(made.ranks, made.ranks)
        )
        assert connected_components(graph, connection="strong")[0] == 1
        kinds[made.name.split("-")[1]] += 1
        assert bool(made.switches) == made.name.startswith("random-switches")
    assert kinds == {"plain": 20, "hosts": 20, "switches": 20}
    made = [random_topology(seed) for seed in SEEDS]
    assert len({topology.digest for topology in made}) == len(made)
    assert min(len(topology.links) / topology.ranks for topology in made) < 1.5  # as sparse as that
    assert sum(bool(t.shared) for t in made if t.name.startswith("random-hosts")) >= 15
