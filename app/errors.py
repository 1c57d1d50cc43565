"""Every error a client can see, and the one place that writes it down in OpenAI's envelope.

TandemError
├── InvalidRequestError          400
│   └── ContextLengthError       400, context_length_exceeded
├── ModelNotFoundError           404
├── ClientDisconnectedError      499, which nobody reads
├── EngineStartingError          503
├── ServerStoppingError          503
└── EngineFailedError            500
    └── EngineDownError          503
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

logger = logging.getLogger("tandem")

MAX_MESSAGE_CHARS = 500
MAX_FIELD_NAME_CHARS = 64


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

    def __init__(self, *, num_prompt_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt has "
            f"{num_prompt_tokens} tokens. Shorten it to at most {max_model_len - 1} tokens.",
            param="prompt",
        )


class ModelNotFoundError(TandemError):
    """Another model than the one served was asked for."""

    status_code = 404
    type = "invalid_request_error"
    code = "model_not_found"


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


class ServerStoppingError(TandemError):
    """The server shuts down, and waited for as long as it may."""

    status_code = 503
    type = "service_unavailable_error"
    code = "server_stopping"
    retry_after_seconds = 10

    def __init__(self) -> None:
        super().__init__("The server stopped before this request was finished.")


class EngineFailedError(TandemError):
    """The engine died, or gave up on this request."""

    code = "engine_error"


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


STATUS_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def error_body(error: TandemError) -> dict[str, Any]:
    """OpenAI's error envelope."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: TandemError) -> JSONResponse:
    return JSONResponse(error_body(error), error.status_code, headers=error.headers)


def from_validation_error(error: ValidationError | RequestValidationError) -> InvalidRequestError:
    """The first problem that pydantic found, without the input that caused it."""
    problem = error.errors()[0]
    path = [str(part)[:MAX_FIELD_NAME_CHARS] for part in problem["loc"]]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return InvalidRequestError(
            f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter"
        )
    if problem["type"] == "missing":
        return InvalidRequestError(
            f"Missing required parameter: '{name}'.", param=name, code="missing_parameter"
        )
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        param = cause.param or path[0]
        return InvalidRequestError(f"Invalid '{param}': {cause}", param=param, code=cause.code)
    return InvalidRequestError(f"Invalid '{path[0]}': {problem['msg']}.", param=path[0])


def from_http_exception(error: HTTPException) -> TandemError:
    """Starlette's own answers: no such route, wrong method."""
    converted = TandemError(str(error.detail), code=STATUS_CODES.get(error.status_code))
    converted.status_code = error.status_code
    if error.status_code < 500:
        converted.type = "invalid_request_error"
    return converted


def install_error_handlers(app: FastAPI) -> None:
    """Give every route and status the same error body."""

    async def handle_tandem_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, TandemError)
        return error_response(error)

    async def handle_validation_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, (ValidationError, RequestValidationError))
        return error_response(from_validation_error(error))

    async def handle_http_exception(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = error_response(from_http_exception(error))
        response.headers.update(error.headers or {})
        return response

    async def handle_any(_: Request, error: Exception) -> JSONResponse:
        logger.exception("unexpected error", exc_info=error)
        return error_response(TandemError("Internal server error.", code="internal_error"))

    app.add_exception_handler(TandemError, handle_tandem_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(Exception, handle_any)
