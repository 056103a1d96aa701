"""Log output of HEADRACE_LOG_LEVEL, for applications without logging of their own."""

import logging


def show_log(level: str, rank: int) -> None:
    """Write the log of "headrace" to stderr, from `level` on, with this process's rank.

    Does nothing if the application has set up logging.
    """
    logger = logging.getLogger("headrace")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"headrace[{rank}] %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else records appear twice if the application sets up logging later
