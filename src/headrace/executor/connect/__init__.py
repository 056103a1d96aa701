"""Connection set-up between the ranks of a group; see `listener`."""
