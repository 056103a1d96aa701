"""What HEADRACE_LOG_LEVEL asks for, where the application has no logging of its own."""

import logging


def show_log(level: str, rank: int) -> None:
    """Send the log of "headrace" to stderr, from `level` on, with this process's rank.

    An application that has set up logging decides what becomes of ours: then this does nothing.
    """
    logger = logging.getLogger("headrace")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"headrace[{rank}] %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # or an application that sets up logging later says everything twice
