"""Report pages of plans and plan books."""
