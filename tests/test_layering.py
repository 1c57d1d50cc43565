"""Who may import whom: the two processes share their messages and the engine's configuration."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = {"engine.messages", "engine.config"}
HTTP = {"app", "fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings"}
TENSORS = {"torch", "safetensors", "gguf", "transformers"}


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", files_of("app"), ids=name)
def test_the_front_end_knows_no_tensors(path):
    packages = {module.split(".")[0] for module in imported_modules(path)}
    assert not packages & TENSORS


@pytest.mark.parametrize("path", files_of("app"), ids=name)
def test_the_front_end_shares_only_messages_and_configuration(path):
    from_engine = {m for m in imported_modules(path) if m.split(".")[0] == "engine"}
    assert from_engine <= SHARED


@pytest.mark.parametrize("path", files_of("engine"), ids=name)
def test_the_engine_knows_no_http(path):
    packages = {module.split(".")[0] for module in imported_modules(path)}
    assert not packages & HTTP
