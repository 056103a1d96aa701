"""A trainer's rows: cached, exchanged with other trainers, updated, committed."""
