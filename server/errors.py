"""The server's errors: one tree, each class with its HTTP status. `status_and_message` is the one place that
turns any exception, ours or the compiler's, into what a client may see.

    ServerError                     500
    ├── ConfigError                 a configuration file is wrong; the process exits with 2
    ├── BadRequest                  400  malformed or illegal: the client can fix it
    ├── Unauthorized                401  a key is missing or unknown
    ├── Forbidden                   403  the operation is off, or needs the admin key
    ├── NotFound                    404  no such model, version or path
    │   └── Unsupported             404  a part of the protocol that this server leaves out
    ├── ReceiveTimeout              408  the request stopped coming before it was whole
    ├── TooLarge                    413  the body, or what it unpacks to, is over the limit
    ├── QueueFull                   429  with Retry-After
    │   └── RateExceeded            429  a key's group, or a model, has used its rate
    ├── RequestRefused              500  it killed its worker twice
    ├── ModelFailed                 500  the model raised where its signature allowed the inputs
    ├── NotReady                    503  loading, going down, other code, or no worker (with Retry-After)
    └── DeadlineExceeded            504  the request's timeout passed
"""

from __future__ import annotations

from dlcb.compiler.errors import RequestError

# What a model's own code may raise, of which nothing but an answer may come: it may say `sys.exit` too.
OF_USERS_CODE = (Exception, SystemExit)


class ServerError(Exception):
    """The root; `status` is the HTTP status of the class."""

    status = 500


class ConfigError(ServerError):
    """One line that names file, line, key and rule."""


class BadRequest(ServerError):
    """The message names the input, the axis and the rule, with what was expected and what came."""

    status = 400


class Unauthorized(ServerError):
    """A key is needed, and none or an unknown one came."""

    status = 401


class Forbidden(ServerError):
    """Legal to ask, not allowed here."""

    status = 403


class NotFound(ServerError):
    """The name or version is not served."""

    status = 404


class ReceiveTimeout(ServerError):
    """A request of which nothing more comes."""

    status = 408


class TooLarge(ServerError):
    """Over a limit in bytes, compressed or not."""

    status = 413


class QueueFull(ServerError):
    """The model's queue holds as much as it may. `retry_after` is whole seconds."""

    status = 429

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateExceeded(QueueFull):
    """More requests a second than a key's group, or a model, allows."""


class RequestRefused(ServerError):
    """Two workers died on this request; it is not tried again."""


class ModelFailed(ServerError):
    """The model raised on inputs that its signature allows."""


class Unsupported(NotFound):
    """A protocol extension this server does not offer. No 5xx: nothing is wrong with the server, and asking
    again, here or elsewhere, is no remedy."""


class NotReady(ServerError):
    """Nothing is wrong with the request; the model or the server is not ready for it. `retry_after` is whole
    seconds, where they can be told."""

    status = 503

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(ServerError):
    """The request's own timeout passed before its answer was there."""

    status = 504


def status_and_message(error: BaseException) -> tuple[int, str]:
    """HTTP status and the text for `{"error": ...}`. What we did not raise ourselves is a 500 without its
    details."""
    if isinstance(error, ServerError):
        return error.status, str(error)
    if isinstance(error, RequestError):
        return BadRequest.status, error.message
    return ServerError.status, "internal error; the server's log has the details"
