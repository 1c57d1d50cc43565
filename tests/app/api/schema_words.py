"""A field's type, default and range in the words of docs/api.md, from the JSON schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

LIMITS = {2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}


def field_words(model: type[BaseModel]) -> dict[str, tuple[str, str, str]]:
    """Type, default and range of each field."""
    schema = model.model_json_schema()
    return {
        name: (
            _type(_without_null(field)),
            _default(model, name),
            _range(_without_null(field)),
        )
        for name, field in schema["properties"].items()
    }


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    """Every optional field may be null, which is its default; the page says so once."""
    options = [option for option in field.get("anyOf", []) if option.get("type") != "null"]
    return options[0] if len(options) == 1 else {**field, "anyOf": options} if options else field


def _type(field: dict[str, Any]) -> str:
    if options := field.get("anyOf"):
        return " or ".join(_type(option) for option in options)
    if "$ref" in field or field.get("type") == "object":
        return "object"
    if field.get("type") == "array":
        return f"array of {_plural(_type(field['items']))}"
    return str(field["type"])


def _plural(kind: str) -> str:
    if kind.startswith("array of"):
        return kind.replace("array of", "arrays of")
    return f"{kind}s"


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    return "" if field.default is None else json.dumps(field.default)


def _range(field: dict[str, Any]) -> str:
    pairs = [
        (field.get("minimum"), field.get("maximum"), ""),
        (field.get("minItems"), field.get("maxItems"), " items"),
        (field.get("minLength"), field.get("maxLength"), " characters"),
    ]
    words = [_between(low, high) + unit for low, high, unit in pairs if (low, high) != (None, None)]
    if "exclusiveMinimum" in field:
        low = f"above {field['exclusiveMinimum']}"
        high = f" to {_number(field['maximum'])}" if "maximum" in field else ""
        words = [low + high]
    if "pattern" in field:
        words = [f"`{field['pattern']}`"]
    return ", ".join(words)


def _between(low: float | None, high: float | None) -> str:
    if high is None:
        return f"from {_number(low)}"
    return f"up to {_number(high)}" if low is None else f"{_number(low)} to {_number(high)}"


def _number(value: Any) -> str:
    value = int(value) if value == int(value) else value
    return LIMITS.get(value, str(value))
