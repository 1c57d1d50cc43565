"""resolve_model: folders on the disk, and ids on a small hub of our own that speaks HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.model_source import ModelSourceError, default_cache_dir, resolve_model

REPOSITORY = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = """
import pathlib, sys
from app.model_source import ModelSourceError, resolve_model
try:
    print(resolve_model(sys.argv[1], pathlib.Path(sys.argv[2])))
except ModelSourceError as error:
    print("error:", error)
"""


class HubHandler(BaseHTTPRequestHandler):
    """Serves one model, `org/model`; `org/gated` is gated and everything else is unknown."""

    files = (
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "onnx/config.json",
    )

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        if self.path.startswith(f"/api/models/org/model/tree/{COMMIT}"):
            tree = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in self.files]
            self.send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        elif self.path.startswith("/api/models/org/model"):
            siblings = [{"rfilename": name} for name in self.files]
            body = json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings})
            self.send(200, body.encode(), {"Content-Type": "application/json"})
        elif self.path.startswith(f"/org/model/resolve/{COMMIT}/"):
            body = self.path.encode()
            self.send(200, body, {"ETag": f'"{len(body)}"', "X-Repo-Commit": COMMIT})
        elif "org/gated" in self.path:
            self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Tests stay quiet."""


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def resolve_in_process(model: str, tmp_path: Path, **environment: str) -> str:
    """The hub's library reads its environment when imported, hence a process of its own."""
    variables = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "NO_PROXY": "*", **environment}
    result = subprocess.run(
        [sys.executable, "-c", RESOLVE, model, str(tmp_path / "cache")],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def write_folder(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    return folder


def test_a_whole_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    names = ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    folder = write_folder(tmp_path / "model", *names)
    assert resolve_model(str(folder), tmp_path / "cache") == folder


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("config.json", "tokenizer.json", "model.safetensors")
    folder = write_folder(tmp_path / "model", *names)
    assert resolve_model("~/model", tmp_path / "cache") == folder


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), r"has no config\.json"),
        (("config.json", "model.safetensors"), r"has no tokenizer\.json"),
        (("config.json", "tokenizer.json"), r"has no \*\.safetensors"),
        (("config.json", "tokenizer.json", "pytorch_model.bin"), "pickled weights only"),
    ],
)
def test_what_a_local_folder_lacks_is_named(
    tmp_path: Path, names: tuple[str, ...], reason: str
) -> None:
    folder = write_folder(tmp_path / "model", *names)
    with pytest.raises(ModelSourceError, match=reason):
        resolve_model(str(folder), tmp_path / "cache")


@pytest.mark.parametrize("model", ["./no-such", "/no/such", "~/no-such", "../no-such"])
def test_a_path_that_does_not_exist_is_not_looked_up_elsewhere(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelSourceError, match="there is no folder"):
        resolve_model(model, tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("model.gguf", r"python -m engine\.models\.gguf"), ("model.safetensors", "is a file")],
)
def test_a_file_is_refused_with_the_way_out(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelSourceError, match=reason):
        resolve_model(str(tmp_path / name), tmp_path / "cache")


def test_the_cache_is_below_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_dir() == Path("/caches/tandem")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "tandem"


def test_a_hub_id_fetches_only_what_is_served(tmp_path: Path, hub_url: str) -> None:
    folder = Path(resolve_in_process("org/model", tmp_path, HF_ENDPOINT=hub_url))
    assert folder.is_relative_to(tmp_path / "hub")
    found = {path.name for path in folder.rglob("*")}
    assert found == {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("org/gated", "it is gated: accept its licence"),
        ("org/unknown", "Hugging Face has no such model"),
        ("not an id", "it is neither a folder nor a Hugging Face model id"),
    ],
)
def test_a_hub_id_that_cannot_be_had_says_why(
    tmp_path: Path, hub_url: str, model: str, reason: str
) -> None:
    output = resolve_in_process(model, tmp_path, HF_ENDPOINT=hub_url)
    assert output.startswith(f"error: model {model}: {reason}")


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_without_a_network_an_unknown_id_is_said_to_be_out_of_reach(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    output = resolve_in_process("org/model", tmp_path, **environment)
    assert output.startswith("error: model org/model: Hugging Face cannot be reached")


@pytest.mark.model
@pytest.mark.parametrize(
    "name", [None, "SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"]
)
def test_every_name_of_the_default_model_is_the_cached_folder(
    model_dir: Path, name: str | None
) -> None:
    assert resolve_model(name, model_dir.parent) == model_dir
