from __future__ import annotations

import socket

import pytest
import tokenizers
from tokenizers import models

from app.__main__ import main


def model_folder(path, *pieces):
    """A folder that passes for a model's; its tokenizer has these tokens."""
    path.mkdir()
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=pieces[0]))
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return str(path)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tandem ")


def test_wrong_flags_exit_with_2_and_a_line_each(capsys):
    assert main(["serve", "--port", "x", "--dtype", "y"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["--port" in lines[0], "--dtype" in lines[1], len(lines)] == [True, True, 3]


def test_an_unknown_command_exits_with_2():
    with pytest.raises(SystemExit, match="2"):
        main(["server"])


def test_a_port_in_use_is_said(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_a_missing_model_is_said(capsys, tmp_path):
    assert main(["serve", "--port", "0", "--model", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("tandem: ")


def test_fetch_prints_the_folder(capsys, tmp_path):
    folder = model_folder(tmp_path / "model", "<unk>", "a")
    assert main(["fetch", "--model", folder]) == 0
    assert capsys.readouterr().out.strip() == folder


def test_fetch_takes_the_model_of_the_environment(capsys, monkeypatch, tmp_path):
    folder = model_folder(tmp_path / "model", "<unk>", "a")
    monkeypatch.setenv("TANDEM_MODEL", folder)
    assert main(["fetch"]) == 0
    assert capsys.readouterr().out.strip() == folder


def test_fetch_keeps_the_model_where_the_environment_says(capsys, monkeypatch, tmp_path):
    no_folder = tmp_path / "file"
    no_folder.touch()
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(no_folder))
    monkeypatch.delenv("TANDEM_MODEL", raising=False)
    assert main(["fetch"]) == 1
    assert f"cannot write the default model into {no_folder}" in capsys.readouterr().err


def test_a_draft_model_of_another_tokenizer_is_refused_by_name(capsys, tmp_path):
    target = model_folder(tmp_path / "target", "<unk>", "a")
    draft = model_folder(tmp_path / "draft", "<unk>", "b")
    config = f'{{"model": "{draft}"}}'
    flags = ["--port", "0", "--model", target, "--speculative-config", config]
    assert main(["serve", *flags]) == 1
    error = capsys.readouterr().err
    assert target in error
    assert draft in error


def test_an_engine_that_cannot_load_its_model_is_said(capsys, tmp_path):
    folder = model_folder(tmp_path / "model", "<unk>", "a")
    assert main(["serve", "--port", "0", "--model", folder]) == 1
    assert "the engine stopped" in capsys.readouterr().err
