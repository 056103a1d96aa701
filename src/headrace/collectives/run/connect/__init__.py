"""How the ranks of a group come to be connected; see `listener`."""
