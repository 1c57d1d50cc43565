"""Strict JSON bodies: no NaN, no lone surrogates, no bad UTF-8, no endless nesting.

The last one of two equal keys counts, as it does for other JSON readers.
"""

from __future__ import annotations

import asyncio
from email.message import Message
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from app.errors import (
    ClientDisconnectedError,
    InvalidRequestError,
    RequestTooLargeError,
    UnsupportedMediaTypeError,
)
from app.http.error_response import from_validation_error

Model = TypeVar("Model", bound=BaseModel)

MAX_DEPTH = 100
# JSON is read in one go that nothing can interrupt; these bound how long that takes. What is in
# strings counts as well: so much punctuation does not fit into a model's context either.
MAX_NUM_COMMAS = 1_000_000
MAX_NUM_BRACKETS = 100_000
# A smaller body is parsed faster than it is handed to a thread.
MAX_INLINE_BYTES = 32 * 1024


async def read_body(request: Request, model: type[Model]) -> Model:
    """The request's body; a large one is parsed in a thread."""
    check_content(request.headers)
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ClientDisconnectedError("The client left before its request was complete.") from None
    if len(body) <= MAX_INLINE_BYTES:
        return parse_body(body, model)
    return await asyncio.to_thread(parse_body, body, model)


def check_content(headers: Headers) -> None:
    """Raises UnsupportedMediaTypeError.

    A missing Content-Type is refused as well: a web page could send such a request, from the
    browser of somebody who can reach this server, without being asked for leave.
    """
    content = Message()
    content["Content-Type"] = headers.get("Content-Type", "text/plain")
    if content.get_content_type() != "application/json":
        raise UnsupportedMediaTypeError(
            "The body must be JSON: send the header 'Content-Type: application/json'."
        )
    if content.get_param("charset", "utf-8") not in ("utf-8", "UTF-8", "utf8", "us-ascii"):
        raise UnsupportedMediaTypeError("The body must be JSON in UTF-8; drop the charset.")
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("The body must not be compressed.")


def parse_body(body: bytes, model: type[Model]) -> Model:
    """Raises InvalidRequestError, with code `invalid_json` where the body is not a JSON object."""
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets > MAX_NUM_BRACKETS or body.count(b",") > MAX_NUM_COMMAS:
        raise RequestTooLargeError(
            f"The body is too large: it may have at most {MAX_NUM_COMMAS} commas and "
            f"{MAX_NUM_BRACKETS} opening brackets."
        )
    data = _decode(body)
    if not isinstance(data, dict):
        raise _invalid_json("The body must be a JSON object.")
    if num_brackets > MAX_DEPTH and _is_deeper(data, MAX_DEPTH):
        raise _invalid_json(f"The body is nested too deeply; the most is {MAX_DEPTH} levels.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise from_validation_error(error) from None


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        message = "The body is not valid JSON." if body else "The body is empty; send JSON."
        raise _invalid_json(message) from None


def _invalid_json(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, code="invalid_json")


def _is_deeper(data: Any, max_depth: int) -> bool:
    level = [data]
    for _ in range(max_depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True
