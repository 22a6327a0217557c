"""Limits on REST connections: their number, and the time in which clients must send and read.

uvicorn has no such limits, so clients with incomplete requests could block all others.
"""

import asyncio
import contextlib
import functools
import itertools
import resource
import socket
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bertfam_serve import json_text

if TYPE_CHECKING:
    from bertfam_serve.options import Options

# Longer than load balancers and clients keep idle connections (60 s in most): a request on a
# connection that is being closed is lost.
KEEP_ALIVE_S = 75.0
# Connections to accept in one iteration of the event loop.
BACKLOG = 100
_KERNEL_BACKLOG = 2048
# File descriptors for other uses: models, libraries, connections that are being closed.
_RESERVE = 128 + BACKLOG
# When the server stops, incomplete requests have this time to arrive.
_SHUTDOWN_S = 2.0
# Time from an answer that closes the connection until the connection is aborted.
_LINGER_S = 1.0


def raise_file_limit(connections: int) -> None:
    """Raises the process's limit on file descriptors for this number of connections, if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = connections + _RESERVE
    if hard != resource.RLIM_INFINITY:
        target = min(hard, target)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def connections_per_port(maximum: int, ports: int) -> int:
    """Returns the number of connections that the limit on file descriptors allows on each port.

    Args:
        maximum: the largest number to return.
        ports: the number of ports that share the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return maximum
    return max(1, min(maximum, (soft - _RESERVE) // ports))


class Connections:
    """The connections of one port, up to a limit.

    Beyond the limit, the connection that has waited longest for its client is closed. Connections
    with a request that is being answered are kept. Not thread-safe: for the event loop only.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._waiting: dict[int, socket.socket] = {}  # by file descriptor; oldest first
        self._busy: dict[int, socket.socket] = {}

    def add(self, connection: socket.socket) -> None:
        """Adds a new connection, which waits for a request."""
        number = connection.fileno()
        self.remove(number)  # the system reuses file descriptors
        self._waiting[number] = connection
        if len(self._waiting) + len(self._busy) > self._maximum:
            self._make_room()

    def mark_busy(self, number: int) -> None:
        """Records that the connection with this file descriptor has received a request."""
        if number in self._waiting:
            self._busy[number] = self._waiting.pop(number)

    def mark_waiting(self, number: int) -> None:
        """Records that the connection waits for its client again."""
        if number in self._busy:
            self._waiting[number] = self._busy.pop(number)

    def remove(self, number: int) -> None:
        """Records that the connection is closed."""
        self._waiting.pop(number, None)
        self._busy.pop(number, None)

    def _make_room(self) -> None:
        for known in (self._waiting, self._busy):
            for number in [n for n, connection in known.items() if connection.fileno() != n]:
                del known[number]
        surplus = len(self._waiting) + len(self._busy) - self._maximum
        for number in list(itertools.islice(self._waiting, max(0, surplus))):
            # The transport then reads end-of-file and closes, in any state.
            with contextlib.suppress(OSError):
                self._waiting.pop(number).shutdown(socket.SHUT_RDWR)


class Listener(socket.socket):
    """A listening socket that registers accepted connections before TLS and HTTP start."""

    def __init__(self, opened: socket.socket, connections: Connections) -> None:
        # asyncio sets TCP_NODELAY only on sockets with this protocol. Without it, the body of an
        # answer waits until the client acknowledges its headers, which takes 40 ms.
        protocol = socket.IPPROTO_TCP
        super().__init__(opened.family, opened.type, protocol, fileno=opened.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection as ``socket.accept`` does."""
        connection, address = super().accept()
        self._connections.add(connection)
        return connection, address

    def listen(self, backlog: int = BACKLOG) -> None:
        """Listens with a larger backlog in the kernel than asyncio asks for."""
        super().listen(max(backlog, _KERNEL_BACKLOG))


def protocol(connections: Connections, options: "Options") -> Any:
    """Returns HTTP/1.1 with the options' limits, for ``uvicorn.Config(http=…)``."""
    return functools.partial(_Protocol, connections, options)


class _Protocol(H11Protocol):
    """uvicorn's protocol, with a deadline for the client's next action."""

    def __init__(
        self,
        connections: Connections,
        options: "Options",
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._options = options
        self._number = -1
        # The connection waits for a cycle's body, headers, a next request, or nothing (self).
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
        self._connections.remove(self._number)
        for timer in (self._deadline, self._reading):
            if timer is not None:
                timer.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._cancel()
        self._awaited = self
        self._connections.mark_busy(self._number)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self._options.body_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def shutdown(self) -> None:
        """Gives incomplete requests a deadline, so that they do not delay the shutdown."""
        super().shutdown()
        if self._deadline is not None and not self.transport.is_closing():
            self._cancel()
            self._deadline = self.loop.call_later(_SHUTDOWN_S, self._time_out)

    def _watch(self) -> None:
        """Sets the deadline for the client's next action if that has changed."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        awaits_headers = self.cycle is None or self.cycle.response_complete
        if not awaits_headers and not self.cycle.more_body:
            self._cancel()
            self._awaited = self
            self._connections.mark_busy(self._number)
            return
        awaited: object = self.cycle
        seconds = self._options.body_timeout_s
        if awaits_headers:
            is_idle = self.cycle is not None and not self.conn.trailing_data[0]
            awaited = "next request" if is_idle else "headers"
            seconds = KEEP_ALIVE_S if is_idle else self._options.header_timeout_s
        if awaited == self._awaited:
            return
        self._cancel()
        self._awaited = awaited
        self._connections.mark_waiting(self._number)
        self._deadline = self.loop.call_later(seconds, self._time_out)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        state = self.conn.our_state
        # Clients that have sent nothing get no answer.
        if state is h11.SEND_RESPONSE or (state is h11.IDLE and self.conn.trailing_data[0]):
            self._answer_408()
        self.transport.close()
        # Also if the client does not read the answer or TLS's close_notify.
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _answer_408(self) -> None:
        awaits_body = self.conn.our_state is h11.SEND_RESPONSE
        flag = "--body-timeout-seconds" if awaits_body else "--header-timeout-seconds"
        what = "body" if awaits_body else "headers"
        body = json_text.encode_error(f"The request's {what} did not arrive in time ({flag}).")
        headers = [("content-type", "application/json"), ("connection", "close")]
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
