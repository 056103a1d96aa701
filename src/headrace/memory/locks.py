"""Locks of captures and steps, for processes that train in several threads."""

from headrace.forks import ThreadLock

CAPTURES = ThreadLock()
"""Held while a model is captured, measured and set back: one at a time in a process, as a trace
swaps parameters and sets back random generators. A capture within one of its thread takes it again;
backward passes never wait for it."""

DRAWS = ThreadLock()
"""Held while a thread of a fitted step draws from default generators, or has set one back."""
