"""Two-level hierarchical aggregation with explicit masters (PLink 3.2, 4.2.1)."""
