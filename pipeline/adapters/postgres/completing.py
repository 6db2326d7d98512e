"""The last statement of a handler's transaction, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import sql
from psycopg.errors import PipelineAborted
from psycopg_pool import PoolTimeout

from pipeline.adapters.postgres.errors import translate
from pipeline.adapters.postgres.session import Target
from pipeline.core.claims import Settlement
from pipeline.errors import ClaimLost, StoreUnavailable

__all__ = ["Completing"]

T = TypeVar("T")

# A deadlock or a lock timeout of the completion itself, too, is nothing that the handler could help.
_NOT_OF_THE_DATA = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
# No connection, no resources, shut down, read-only as a standby is.
_OUTAGES = ("08", "53", "57P", "25006")
# Gives no row, or fails with this code: by then a COMMIT that came along is not carried out.
_LOST = "PL001"
_COMPLETE = """
    with done as (
        update {schema}.jobs set
            state = 'completed', attempt = %(attempt)s, hop = %(hop)s,
            started_at = to_timestamp(%(started_at)s), finished_at = to_timestamp(%(finished_at)s)
        where job_id = %(job_id)s and token = %(token)s and worker_id = %(worker)s and state = 'running'
        returning 1
    )
    select {schema}.claim_is_lost(
        %(job_id)s, %(token)s, (select token from {schema}.jobs where job_id = %(job_id)s)
    )
    where not exists (select from done)
"""


class Completing:
    """For transactions of every kind of connection."""

    def __init__(self, target: Target) -> None:
        self._place = target.place
        self._timeout = target.connect_timeout
        self._statement = sql.SQL(_COMPLETE).format(schema=sql.Identifier(target.schema))

    @contextmanager
    def translated(self) -> Iterator[Ending]:
        """Turn what says that the claim or the server is gone into errors of ours; a handler's own errors pass."""
        ending = Ending(self._statement)
        try:
            yield ending
        except PoolTimeout as error:
            raise StoreUnavailable(
                f"{self._place}: no connection for a handler's transaction could be had within {self._timeout:g} s"
            ) from error
        except psycopg.Error as raised:
            first = _first(raised)
            if first.sqlstate == _LOST:
                raise ClaimLost(
                    f"{first.diag.message_primary}; everything written in this transaction is rolled back"
                ) from first
            if _is_outage(first) or (ending.begun and isinstance(first, _NOT_OF_THE_DATA)):
                raise translate(first, self._place) from first
            raise first from None


class Ending:
    """The end of one handler's transaction. From then on no statement is the handler's."""

    def __init__(self, statement: sql.Composed) -> None:
        self._statement = statement
        self.begun = False

    def send(self, execute: Callable[..., T], worker_id: str, completion: Settlement) -> T:
        self.begun = True
        return execute(self._statement, {**completion._asdict(), "worker": worker_id})


def _first(error: psycopg.Error) -> psycopg.Error:
    """What went wrong with the completion. When the server's answers come in two parts psycopg raises the second error:
    that the COMMIT was left out for the first.
    """
    cause = error.__context__
    return cause if isinstance(error, PipelineAborted) and isinstance(cause, psycopg.Error) else error


def _is_outage(error: psycopg.Error) -> bool:
    """Whether the connection or the server is at fault, rather than a statement of the handler (a deadlock, say)."""
    if not isinstance(error, _NOT_OF_THE_DATA):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(_OUTAGES)
