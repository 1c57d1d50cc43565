"""The one place that writes errors down in OpenAI's envelope, also FastAPI's and pydantic's."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from app.errors import FieldError, InvalidRequestError, TandemError

MAX_FIELD_NAME_CHARS = 64


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """What every status of 400 and above comes with."""

    error: ErrorDetail


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
    field = path[0] if path else "body"
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
        param = cause.param or field
        return InvalidRequestError(f"Invalid '{param}': {cause}", param=param, code=cause.code)
    return InvalidRequestError(f"Invalid '{field}': {problem['msg']}.", param=field)


def from_http_exception(error: HTTPException) -> TandemError:
    """Starlette's own answers: no such route, wrong method."""
    if error.status_code == 404:
        message, code = "There is no such path: /openapi.json lists them.", "not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another one")
        message, code = f"This method is not allowed here; use {allowed}.", "method_not_allowed"
    else:
        message, code = str(error.detail), "bad_request"
    converted = InvalidRequestError(message, code=code)
    converted.status_code = error.status_code
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

    app.add_exception_handler(TandemError, handle_tandem_error)
    app.add_exception_handler(RequestValidationError, handle_validation_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
