"""What a model folder says beside tokenizer.json: special tokens and the chat template.

Reads the files; does not know what a template means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.model_source import ModelSourceError

_DEFAULT_TEMPLATE: Final = "default"


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """`special_tokens` are texts by name, as `bos_token`. What a folder does not say is absent."""

    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    tokenizer_class: str | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerConfig:
        """Raises ModelSourceError where a file is there and is not what it should be."""
        config = _read_object(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(_read_object(folder / "special_tokens_map.json"))
        tokenizer_class = config.get("tokenizer_class")
        return cls(
            special_tokens | _special_tokens(config),
            _chat_template(folder, config),
            tokenizer_class if isinstance(tokenizer_class, str) else None,
        )


def read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"cannot read the chat template {path}: {error}") from error


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """A file of its own goes before what is in tokenizer_config.json, as in transformers."""
    if (path := folder / "chat_template.jinja").is_file():
        return read_template(path)
    old_file = _read_object(folder / "chat_template.json")
    return _named_default(config.get("chat_template")) or _named_default(
        old_file.get("chat_template")
    )


def _named_default(template: Any) -> str | None:
    """The template, or the one named "default" of a list of {"name", "template"}."""
    if isinstance(template, list):
        named = {
            each.get("name"): each.get("template") for each in template if isinstance(each, dict)
        }
        template = named.get(_DEFAULT_TEMPLATE)
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in tokens.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file; an empty one where there is no file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelSourceError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise ModelSourceError(f"{path} is not a JSON object")
    return data
