"""Planning: from a training step and a budget to the fastest schedule known, with its proof."""
