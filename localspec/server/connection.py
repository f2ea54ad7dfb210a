"""A connection whose requests must arrive in time."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256  # that are answered: each may send a body of the largest size
_RECEIVE_SECONDS = 60.0  # for a request, from its first byte to its last


class Connection(H11Protocol):
    """Uvicorn's, closed where its first request, or the rest of one, does not come in time.

    Without that, who opens connections and says nothing keeps all others out for ever: they hold
    the process's file descriptors. Answers may take as long as they do.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * MOST_CONNECTIONS:
            transport.abort()  # up to there, Uvicorn tells each request that there are too many
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Expect the rest of a request; one that is whole may be answered."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._relax()
        elif self._late is None:
            self._late = self.loop.call_later(_RECEIVE_SECONDS, self.transport.close)

    def _relax(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
