"""API keys from a file, which keeps them out of process listings: one on each line."""

from __future__ import annotations

import re
from pathlib import Path

# What a header can carry without quoting, and no comma, which separates keys in flags.
KEY = re.compile(r"[!-+\--~]+")


def check_api_key(key: str) -> str:
    """Raises ValueError, without the key in its words."""
    if not KEY.fullmatch(key):
        raise ValueError("a key must be printable ASCII, not empty, without spaces and commas")
    return key


def read_api_keys(path: Path) -> list[str]:
    """Empty lines, and those that start with #, do not count. Raises ValueError."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
    keys = [check_api_key(line) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} has no keys")
    return keys
