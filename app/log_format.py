"""How log lines look: text for people or one JSON object per line, both with the request's id.

Control characters are escaped, so that nothing that a client sends can look like a line of its own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal

LogFormat = Literal["text", "json"]

# A task of its own serves each request.
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")

# C0, DEL, C1, the line and paragraph separators, and what turns the direction of text around.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was logged with `extra={"fields": …}`."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    request_id = current_request_id.get()
    return {"request_id": request_id, **fields} if request_id else fields


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in fields_of(record).items())
        message = escape(f"{record.getMessage()}{pairs}")
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"
        if record.exc_info:
            lines = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {escape(each)}" for each in lines)
        return line


class JsonFormatter(logging.Formatter):
    """One object per line; json escapes what is not ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Everything goes to stderr in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
