"""Planning: configurations ranked by a model, and by trials."""
