"""What /openapi.json says that FastAPI cannot see: bodies that are read by hand, and errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from app.http.error_response import ErrorResponse

SCHEMAS = "#/components/schemas/"
ERRORS = {
    400: "The request is wrong; the message says where.",
    401: "The API key is missing or wrong.",
    404: "There is no such model or path.",
    408: "The request did not arrive in time, or its own deadline has passed.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests wait; the headers say when to come again.",
    500: "A bug, or a failure of the engine.",
    503: "The engine is starting, down or busy; the headers say when to come again.",
}
EVENT = {
    "description": "Each event's data is the answer's next part, an error, or [DONE] at the end.",
    "type": "object",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
# What may come from any route.
COMMON_ERRORS = (401, 413, 500, 503)

Responses = dict[int | str, dict[str, Any]]


def errors(*status_codes: int) -> Responses:
    """For `responses` of a route."""
    content = _json_content({"$ref": f"{SCHEMAS}{ErrorResponse.__name__}"})
    return {code: {"description": ERRORS[code], "content": content} for code in status_codes}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra` of a route that reads its body itself."""
    return {"requestBody": {"required": True, "content": _json_content(_schema(model))}}


def answers(model: Any, description: str, *, streamed: bool = False) -> Responses:
    """For `responses` of a route that reads a body: its answer, and every error."""
    content = {"text/event-stream": {"schema": EVENT}} if streamed else {}
    success = {"model": model, "description": description, "content": content}
    return {200: success, **errors(*ERRORS)}


class DocumentedApi(FastAPI):
    """FastAPI, with the schemas of bodies among the others; its 422 is our 400."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            _add_schema(_schema(ErrorResponse), schemas)
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    body = operation.get("requestBody", {"content": {}})["content"]
                    for content in body.values():
                        content["schema"] = _add_schema(content["schema"], schemas)
        assert self.openapi_schema is not None
        return self.openapi_schema


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template=SCHEMAS + "{model}")


def _add_schema(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema, which moves to the others with all that it needs."""
    if "$ref" in schema:
        return schema
    schemas.update(schema.get("$defs", {}))
    name = schema["title"]
    schemas[name] = {key: value for key, value in schema.items() if key != "$defs"}
    return {"$ref": SCHEMAS + name}
