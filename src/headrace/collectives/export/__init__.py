"""Plans for other executors, and other tools' plans for the verifier."""
