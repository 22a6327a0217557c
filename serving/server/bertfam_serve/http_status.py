"""HTTP status codes, and the length of error messages."""

from bertfam_tf.export.runtime.status import Code

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


def shortened(message: str) -> str:
    """Returns an error message truncated to 1,024 characters, as Serving does over gRPC.

    This bounds the response even if the message quotes the request.
    """
    if len(message) <= _MAX_CHARACTERS:
        return message
    return message[:_MAX_CHARACTERS] + "...TRUNCATED"
