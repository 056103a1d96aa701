"""Adapting: an index follows its workload, leaf by leaf, while it is used."""
