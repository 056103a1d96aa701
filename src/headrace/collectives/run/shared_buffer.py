"""Former place of `headrace.executor.empty_shared`, for programs that import it from here."""

from headrace.executor import empty_shared as empty_shared
