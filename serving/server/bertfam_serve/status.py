"""Canonical status codes and the corresponding HTTP status codes."""

import enum


class Code(enum.IntEnum):
    """Canonical status codes, as gRPC and TensorFlow number them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


HTTP_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


_MAX_CHARACTERS = 1024


class ServingError(Exception):
    """A failed request or load, with the status code and the text for the client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """`CODE_NAME: message`, as TensorFlow formats a status within another one's message."""
        return f"{self.code.name}: {self.message}"


def shortened(message: str) -> str:
    """An error message truncated to 1,024 characters, as Serving does over gRPC.

    This bounds the response even if the message quotes the request.
    """
    if len(message) <= _MAX_CHARACTERS:
        return message
    return message[:_MAX_CHARACTERS] + "...TRUNCATED"


def invalid(message: str) -> ServingError:
    """An INVALID_ARGUMENT error."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> ServingError:
    """An UNIMPLEMENTED error."""
    return ServingError(Code.UNIMPLEMENTED, message)
