"""From an attention profile to a plan: clusters and bits of every layer."""
