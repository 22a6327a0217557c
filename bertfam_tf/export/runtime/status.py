"""Canonical status codes, and the error that carries one."""

import enum


class Code(enum.IntEnum):
    """A canonical status code, as gRPC and TensorFlow number them."""

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


class ServingError(Exception):
    """A failed request or load.

    Attributes:
        code: the status code.
        message: the text for the client.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        """``CODE_NAME: message``, as TensorFlow formats a status within another one's message."""
        return f"{self.code.name}: {self.message}"


def invalid(message: str) -> ServingError:
    """Returns an INVALID_ARGUMENT error."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> ServingError:
    """Returns an UNIMPLEMENTED error."""
    return ServingError(Code.UNIMPLEMENTED, message)
