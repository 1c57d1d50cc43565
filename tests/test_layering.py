"""Who may import whom: the two processes share their messages and the engine's configuration."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = {"engine.messages", "engine.config"}
HTTP = {"app", "fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings"}
# Which other packages of app/ each of them may use; modules of app/ itself are not meant.
USES = {
    "bench": set(),
    "dispatch": set(),
    "api": set(),
    "text": {"api"},
    "generation": {"api", "text", "dispatch"},
    "http": {"api", "generation"},
    "routes": {"api", "generation", "dispatch", "http"},
}
KNOWS_HTTP = {"http", "routes"}
WEB = {"fastapi", "starlette", "uvicorn"}
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


@pytest.mark.parametrize("path", files_of("app"), ids=name)
def test_each_package_of_the_front_end_uses_only_those_below_it(path):
    package = path.relative_to(ROOT / "app").parts[0]
    imported = {m.split(".")[1] for m in imported_modules(path) if m.startswith("app.")}
    assert imported & USES.keys() <= USES.get(package, USES.keys()) | {package}


@pytest.mark.parametrize("path", files_of("app"), ids=name)
def test_only_the_edge_knows_the_web_framework(path):
    package = path.relative_to(ROOT / "app").parts[0]
    if package in USES and package not in KNOWS_HTTP:
        packages = {module.split(".")[0] for module in imported_modules(path)}
        assert not packages & WEB
