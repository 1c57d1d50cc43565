"""Who asks, by what the middlewares found out."""

from __future__ import annotations

import uuid

from starlette.requests import Request

from app.generation.request_context import RequestContext


def caller(request: Request) -> RequestContext:
    request_id = getattr(request.state, "request_id", None) or uuid.uuid4().hex
    return RequestContext(request_id, getattr(request.state, "tenant", ""))
