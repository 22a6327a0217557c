"""REST's connections: how many there may be, and how long clients may take to send and to read.

uvicorn limits neither, so that clients who send half a request each could keep all others out.
"""

import asyncio
import contextlib
import itertools
import resource
import socket
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bertfam_tf.serve import json_text

MAX_CONNECTIONS = 1000
HEADER_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
# Connections that are accepted before the event loop turns to those that it has.
BACKLOG = 100
_KERNEL_BACKLOG = 2048
# File descriptors for everything else: models, libraries, connections that are being closed.
_RESERVE = 128 + BACKLOG
# What is half sent when the server stops may still be completed for so long.
_LAST_S = 2.0
# From an answer that closes the connection until it is cut.
_LINGER_S = 1.0


def raise_file_limit(wanted: int) -> None:
    """Asks the system for as many file descriptors as so many connections take, if it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + _RESERVE if hard == resource.RLIM_INFINITY else min(hard, wanted + _RESERVE)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def affordable(most: int, ports: int) -> int:
    """How many connections each of some ports may have, `most` or fewer, by the system's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (soft - _RESERVE) // ports))


class Connections:
    """The connections of one port. Beyond the limit, the one that has waited longest is closed.

    Those whose request has arrived and is not answered yet are not closed for others. To be used
    from the thread of the event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[int, socket.socket] = {}  # by file descriptor; oldest first
        self._busy: dict[int, socket.socket] = {}

    def accepted(self, connection: socket.socket) -> None:
        """A new one, which waits for its request."""
        number = connection.fileno()
        self.closed(number)  # the system uses numbers again
        self._waiting[number] = connection
        if len(self._waiting) + len(self._busy) > self._most:
            self._make_room()

    def busy(self, number: int) -> None:
        """The connection of this file descriptor has a request to be answered."""
        if number in self._waiting:
            self._busy[number] = self._waiting.pop(number)

    def waits(self, number: int) -> None:
        """It waits for a request again."""
        if number in self._busy:
            self._waiting[number] = self._busy.pop(number)

    def closed(self, number: int) -> None:
        """It is no more."""
        self._waiting.pop(number, None)
        self._busy.pop(number, None)

    def _make_room(self) -> None:
        for known in (self._waiting, self._busy):
            for number in [n for n, connection in known.items() if connection.fileno() != n]:
                del known[number]
        surplus = len(self._waiting) + len(self._busy) - self._most
        for number in list(itertools.islice(self._waiting, max(0, surplus))):
            # Its transport then reads an end, and closes, in whatever state it is.
            with contextlib.suppress(OSError):
                self._waiting.pop(number).shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket that reports what it accepts, before TLS or HTTP begin."""

    def __init__(self, opened: socket.socket, connections: Connections) -> None:
        super().__init__(opened.family, opened.type, opened.proto, fileno=opened.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """As `socket.accept`."""
        connection, address = super().accept()
        self._connections.accepted(connection)
        return connection, address

    def listen(self, backlog: int = BACKLOG) -> None:
        """The system may hold more connections than are accepted in one go."""
        super().listen(max(backlog, _KERNEL_BACKLOG))


class Patience(NamedTuple):
    """How long clients may take.

    Attributes:
        headers_s: seconds for a request's line and headers, from when one is waited for.
        body_s: seconds for a request's body, and for reading what is written of an answer.
    """

    headers_s: float = HEADER_TIMEOUT_S
    body_s: float = BODY_TIMEOUT_S


def protocol(connections: Connections, patience: Patience) -> Any:
    """What `uvicorn.Config` takes as `http`: HTTP/1.1 with these limits."""

    def make(**arguments: Any) -> asyncio.Protocol:
        return _Protocol(connections, patience, **arguments)

    return make


class _Protocol(H11Protocol):
    """uvicorn's, with deadlines for what the client has to do next."""

    def __init__(
        self,
        connections: Connections,
        patience: Patience,
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._known = connections
        self._patience = patience
        self._number = -1
        # What is waited for (the cycle whose body it is, None for headers), and until when.
        self._awaited: object = self
        self._deadline: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._number = transport.get_extra_info("socket").fileno()
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._known.closed(self._number)
        for timer in (self._deadline, self._reading):
            if timer is not None:
                timer.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._cancel()
        self._awaited = self
        self._known.busy(self._number)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self._patience.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits until all that was written is read.
        self.loop.call_later(self._patience.body_s, self.transport.abort)

    def shutdown(self) -> None:
        """No request that has not arrived keeps the server from stopping."""
        super().shutdown()
        if self._deadline is not None and not self.transport.is_closing():
            self._cancel()
            self._deadline = self.loop.call_later(_LAST_S, self._too_slow)

    def _watch(self) -> None:
        """Sets the deadline for what the client has to do next, if that has changed."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        awaits_headers = self.cycle is None or self.cycle.response_complete
        if not awaits_headers and not self.cycle.more_body:
            self._cancel()
            self._awaited = self
            self._known.busy(self._number)
            return
        awaited = None if awaits_headers else self.cycle
        if awaited is self._awaited:
            return
        self._cancel()
        self._awaited = awaited
        self._known.waits(self._number)
        seconds = self._patience.headers_s if awaits_headers else self._patience.body_s
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        begun = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        # To a client that has sent nothing there is nothing to say.
        if begun and (self.cycle is not None or self.conn.trailing_data[0]):
            self._answer_408()
        self.transport.close()
        # Even where what is to be written, or TLS's farewell, is not read.
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _answer_408(self) -> None:
        awaits_body = self.conn.our_state is h11.SEND_RESPONSE
        flag = "--body-timeout-seconds" if awaits_body else "--header-timeout-seconds"
        what = "body" if awaits_body else "headers"
        text = json_text.quote(f"The request's {what} did not arrive in time ({flag})")
        headers = [("content-type", "application/json"), ("connection", "close")]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=f'{{\n    "error": {text}\n}}'.encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
