"""Which web pages may call this server from a browser: none, unless the operator lists them."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from app.errors import InvalidRequestError
from app.http.error_response import error_response
from app.http.request_id import HEADER


class CorsMiddleware(CORSMiddleware):
    """Starlette's, with OpenAI's error envelope."""

    def __init__(self, app: ASGIApp, *, origins: list[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[HEADER, "Retry-After", "retry-after-ms"],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        refusal = error_response(
            InvalidRequestError(
                "Cross-origin requests with this origin, method or headers are not allowed. "
                "The server's operator lists origins with --cors-allow-origins.",
                code="cors_not_allowed",
            )
        )
        refusal.headers["Vary"] = response.headers["Vary"]
        return refusal
