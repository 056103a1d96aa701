"""Failed exchanges: which rank is missing, on every rank, in bounded time.

headrace's backend names the rank that is lost, on all ranks. Gloo does not: a rank whose connection
to the lost one broke gets an error with an address, and others wait until the group's timeout. So
on Gloo a rank whose exchange failed reports that in the group's store, waiting ranks look for
reports (`LOOK_S`), and those that have not reported after `REPORT_S` are the missing ones.
"""

# torch does not export a group's store.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from headrace.compression.errors import ExchangeError
from headrace.errors import CommunicationError
from headrace.job.store import answering

LOOK_S = 1.0
"""A rank that has waited so long for an exchange looks for reports, and again after as long."""

REPORT_S = 5.0
"""A rank that has not reported so long after this rank's error is missing: more than `LOOK_S`, and
less than a user waits for."""

_POLL_S = 0.05
_LINGER_S = 4 * _POLL_S  # others read all reports before a process that runs the store ends
_REMEDY = "see that rank's log, and start the job again from a checkpoint"


def is_gloo(group: dist.ProcessGroup) -> bool:
    """Return whether Gloo exchanges a group's CPU tensors."""
    backends = dist.distributed_c10d._world.pg_backend_config.get(group, "")
    return "cpu:gloo" in str(backends).split(",")


class FailureReports:
    """Reports of failed exchanges of one process group.

    Parameters
    ----------
    group : of any backend; what only Gloo needs is done on Gloo alone.
    what : is exchanged, the beginning of the messages.
    """

    def __init__(self, group: dist.ProcessGroup, what: str = "exchange of gradients") -> None:
        self._what = what
        self._store: Any = None
        if is_gloo(group):
            self._rank, self._members = group.rank(), dist.get_process_group_ranks(group)
            self._store = dist.distributed_c10d._get_process_group_store(group)
        self._failed = False
        self._error: ExchangeError | None = None

    def wait(self, work: Any) -> None:
        """Wait for a collective, or until another rank reports that its exchange failed.

        Raises
        ------
        RuntimeError : the collective's.
        CommunicationError : an exchange of another rank, or an earlier one of this rank, failed;
            the store does not answer.
        """
        if self._store is None:
            work.wait()
            return
        try:
            while not self._ended(work):
                if self._failed or self._reported():
                    raise CommunicationError("the exchange of another rank has failed")
        except RuntimeError:
            self._report()  # at once: other exchanges of the round are still to be waited for
            raise

    def _ended(self, work: Any) -> bool:
        """Return whether a collective ends within `LOOK_S`; raises its error."""
        try:
            # after a failure, the others of its round are not waited for
            work.wait(timedelta(seconds=_POLL_S if self._failed else LOOK_S))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()
        return True

    def _report(self) -> None:
        """Report that an exchange of this rank has failed."""
        if not self._failed:
            self._failed = True
            with suppress(RuntimeError):  # the store is lost: `error` says so
                self._store.set(self._key(self._rank), "failed")

    def error(self, cause: RuntimeError) -> ExchangeError:
        """Return the error of an exchange that failed by `cause`; on Gloo, report it first.

        Takes up to `REPORT_S`; the first error is that of all further exchanges.
        """
        if self._error is None:
            self._error = self._described(cause)
        return self._error

    def _described(self, cause: RuntimeError) -> ExchangeError:
        reason = str(cause).partition("This is typically caused")[0].strip().rstrip(".")
        if self._store is None:
            return ExchangeError(f"{self._what}: {reason}; {_REMEDY}")
        try:
            with answering(self._store, "it is not known which rank is missing"):
                missing = tuple(self._missing())
        except RuntimeError as error:
            return ExchangeError(f"{self._what}: {error}; {reason}; {_REMEDY}")
        if not missing:
            return ExchangeError(
                f"{self._what}: {reason}. No rank is missing: all have reported a failed "
                "exchange; see the first one's log, and start the job again from a checkpoint"
            )
        named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        return ExchangeError(
            f"{self._what}: {named} did not report within {REPORT_S:g} s that this "
            f"exchange failed, so died or does not take part: {_REMEDY} ({reason})",
            missing=missing,
        )

    def _missing(self) -> list[int]:
        """Return the ranks of the job that have not reported a failure after `REPORT_S`."""
        self._report()
        end = time.monotonic() + REPORT_S
        missing: list[int] | None = None
        while True:
            try:
                missing = [r for r in self._others() if not self._store.check([self._key(r)])]
            except RuntimeError:
                if missing is None or 0 in missing:
                    raise
                break  # rank 0, which may run the store, has ended after its report
            if not missing or time.monotonic() > end:
                break
            time.sleep(_POLL_S)
        time.sleep(_LINGER_S)
        return [self._members[rank] for rank in missing]

    def _reported(self) -> bool:
        """Return whether another rank has reported a failure."""
        with answering(self._store, f"rank {self._members[self._rank]}: waiting for an exchange"):
            return any(self._store.check([self._key(rank)]) for rank in self._others())

    def _others(self) -> list[int]:
        return [rank for rank in range(len(self._members)) if rank != self._rank]

    def _key(self, rank: int) -> str:
        return f"headrace/failed_exchange/{rank}"
