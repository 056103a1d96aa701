"""From an embedding profile to a plan: lookahead, caches, synchronisation, numbers of roles."""
