"""One side of a comparison: a name, and request fields that should change the speed alone."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The benchmark sets them itself; answers of several choices do not say how they were drafted.
OWN_FIELDS = frozenset(
    {"prompt", "max_tokens", "temperature", "seed", "cache_salt", "stream", "stream_options"}
    | {"n", "best_of"}
)


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    fields: Mapping[str, Any]


def default_sides() -> tuple[Side, Side]:
    """The first one is what all are compared with."""
    return Side("off", {"speculative": False}), Side("on", {"speculative": True})


def parse_side(text: str) -> Side:
    """Example: `short={"speculative": {"num_speculative_tokens": 3}}`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ArgumentTypeError(f"{text!r} is not NAME={{JSON object}}")
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise ArgumentTypeError(f"{name}: the fields are not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ArgumentTypeError(f"{name}: the fields are not a JSON object")
    if own := sorted(OWN_FIELDS & fields.keys()):
        raise ArgumentTypeError(f"{name}: the benchmark sets {', '.join(own)} itself")
    return Side(name.strip(), fields)
