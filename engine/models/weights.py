"""The tensors of a model folder by their Hugging Face names, memory-mapped from safetensors.

A tensor is read when it is asked for and not kept, so that no weight is held twice. It does not
know what the tensors are for; pickles are never opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from engine.models.config import ModelError

_SINGLE_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"
_DTYPES: Final = ("F32", "F16", "BF16")
_PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth")


class WeightsError(ModelError):
    """A weight file or a tensor is missing, broken or of another shape than the model needs."""


class Weights:
    """The open weight files of one folder: `with Weights(folder) as weights: ...`"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ExitStack()
        self._file_of: dict[str, Any] = {}  # tensor name -> open safetensors file
        with ExitStack() as files:
            for path in _weight_files(folder):
                file = files.enter_context(_open(path))
                self._file_of.update(dict.fromkeys(file.keys(), file))
            self._files = files.pop_all()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def expect(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor `name`, which must exist, have this shape and be a plain float type."""
        if name not in self._file_of:
            raise WeightsError(f"{self.folder} has no tensor {name}")
        stored = self._file_of[name].get_slice(name)
        if stored.get_dtype() not in _DTYPES:
            raise WeightsError(
                f"tensor {name} has dtype {stored.get_dtype()}; supported: {', '.join(_DTYPES)}"
            )
        if tuple(stored.get_shape()) != shape:
            raise WeightsError(
                f"tensor {name} has shape {tuple(stored.get_shape())}; the model needs {shape}"
            )
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Unmap the files; tensors already read stay valid."""
        self._file_of.clear()
        self._files.close()


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE_FILE).exists():
        return [folder / _SINGLE_FILE]
    if (folder / _INDEX_FILE).exists():
        return _shards(folder / _INDEX_FILE)
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLE_SUFFIXES)
    if pickles:
        raise WeightsError(
            f"{folder} holds its weights as pickles ({pickles[0]}), which can run code when "
            "opened: only safetensors are loaded"
        )
    raise WeightsError(f"{folder} has neither {_SINGLE_FILE} nor {_INDEX_FILE}")


def _shards(index_path: Path) -> list[Path]:
    try:
        index = json.loads(index_path.read_text(encoding="utf-8"))
        names = sorted({str(name) for name in index["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index_path} cannot be read: {error!r}") from error
    for name in names:
        if Path(name).name != name:
            raise WeightsError(f"{index_path} names {name}, which is not in the same folder")
    return [index_path.parent / name for name in names]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
