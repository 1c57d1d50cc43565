"""Every error a client can see, with its status and code. It does not know how they are sent.

TandemError
├── InvalidRequestError          400
│   └── ContextLengthError       400, context_length_exceeded
├── AuthenticationError          401
├── ModelNotFoundError           404
├── RequestTimeoutError          408
├── RequestTooLargeError         413
├── UnsupportedMediaTypeError    415
├── QueueFullError               429
├── HeadTooLargeError            431
├── ClientDisconnectedError      499, which nobody reads
├── EngineStartingError          503
├── QueueTimeoutError            503
├── ServerStoppingError          503
└── EngineFailedError            500
    ├── EngineCrashedError       500, engine_crashed_by_request
    └── EngineDownError          503
"""

from __future__ import annotations

MAX_MESSAGE_CHARS = 500


class TandemError(Exception):
    """Something that ends a request; the message is for the client."""

    status_code = 500
    type = "server_error"
    code: str | None = None
    retry_after_seconds: int | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message[:MAX_MESSAGE_CHARS]
        self.param = param
        self.code = code or self.code

    @property
    def headers(self) -> dict[str, str]:
        seconds = self.retry_after_seconds
        if seconds is None:
            return {}
        return {"Retry-After": str(seconds), "retry-after-ms": str(seconds * 1000)}


class InvalidRequestError(TandemError):
    """The request is wrong, and sending it again will not help."""

    status_code = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for one generated token."""

    code = "context_length_exceeded"

    def __init__(
        self,
        *,
        num_prompt_tokens: int,
        max_model_len: int,
        is_least: bool = False,
        param: str = "prompt",
    ) -> None:
        amount = f"at least {num_prompt_tokens}" if is_least else str(num_prompt_tokens)
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt has "
            f"{amount} tokens. Shorten it to at most {max_model_len - 1} tokens.",
            param=param,
        )


class AuthenticationError(TandemError):
    """The API key is missing or wrong."""

    status_code = 401
    type = "authentication_error"
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class ModelNotFoundError(TandemError):
    """Another model than the one served was asked for."""

    status_code = 404
    type = "invalid_request_error"
    code = "model_not_found"


class RequestTimeoutError(TandemError):
    """The client was too slow to send its request, or set a deadline that has passed."""

    status_code = 408
    type = "invalid_request_error"
    code = "request_timeout"

    @property
    def headers(self) -> dict[str, str]:
        # OpenAI's clients would send it again, and wait as long again.
        return {"x-should-retry": "false"}


class RequestTooLargeError(TandemError):
    """The body is larger than the server takes."""

    status_code = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMediaTypeError(TandemError):
    """The body is not JSON."""

    status_code = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class QueueFullError(TandemError):
    """As many requests wait as may."""

    status_code = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after_seconds = 1


class HeadTooLargeError(TandemError):
    """The request line and the headers are larger than the server takes."""

    status_code = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class ClientDisconnectedError(TandemError):
    """The client went away before its answer was ready."""

    status_code = 499
    type = "invalid_request_error"
    code = "client_disconnected"


class EngineStartingError(TandemError):
    """The engine is loading the model."""

    status_code = 503
    type = "service_unavailable_error"
    code = "engine_starting"
    retry_after_seconds = 2

    def __init__(self) -> None:
        super().__init__("The engine is still loading the model.")


class QueueTimeoutError(TandemError):
    """The request waited for a slot for as long as one may."""

    status_code = 503
    type = "service_unavailable_error"
    code = "queue_timeout"
    retry_after_seconds = 5

    def __init__(self) -> None:
        super().__init__("The request waited too long in the queue.")


class ServerStoppingError(TandemError):
    """The server shuts down: it takes nothing new, and waited for the rest as long as it may."""

    status_code = 503
    type = "service_unavailable_error"
    code = "server_stopping"
    retry_after_seconds = 10

    def __init__(self) -> None:
        super().__init__("The server is shutting down.")


class EngineFailedError(TandemError):
    """The engine died, or gave up on this request."""

    code = "engine_error"


class EngineCrashedError(EngineFailedError):
    """The engine died of this request twice, the second time while it ran alone."""

    code = "engine_crashed_by_request"

    def __init__(self) -> None:
        super().__init__("The engine crashed on this request twice. It is not tried again.")

    @property
    def headers(self) -> dict[str, str]:
        # OpenAI's clients would send it again, and crash the engine again.
        return {"x-should-retry": "false"}


class EngineDownError(EngineFailedError):
    """There is no engine to send the request to."""

    status_code = 503
    retry_after_seconds = 10


class FieldError(ValueError):
    """A field that a validator refuses, in words for the client."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def internal_error() -> TandemError:
    return TandemError(
        "Internal server error. The server's log has the details, by the request's id.",
        code="internal_error",
    )
