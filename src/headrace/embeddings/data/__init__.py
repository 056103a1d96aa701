"""Examples of clicks: files of them, and made ones."""
