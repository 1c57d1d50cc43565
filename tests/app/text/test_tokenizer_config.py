from __future__ import annotations

import json

import pytest

from app.model_source import ModelSourceError
from app.text.tokenizer_config import TokenizerConfig


def write(folder, name: str, data) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_folder_without_any_of_the_files_says_nothing(tmp_path):
    assert TokenizerConfig.from_folder(tmp_path) == TokenizerConfig()


def test_special_tokens_are_read_in_both_forms(tmp_path):
    write(
        tmp_path,
        "tokenizer_config.json",
        {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>", "lstrip": False},
            "pad_token": None,
            "add_bos_token": True,
            "tokenizer_class": "LlamaTokenizer",
        },
    )
    write(tmp_path, "special_tokens_map.json", {"eos_token": "<old>", "unk_token": "<unk>"})
    config = TokenizerConfig.from_folder(tmp_path)
    assert config.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert config.tokenizer_class == "LlamaTokenizer"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "a"}}, "a"),
        ({"chat_template.jinja": "b", "tokenizer_config.json": {"chat_template": "a"}}, "b"),
        ({"chat_template.json": {"chat_template": "c"}}, "c"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "d"},
                        {"name": "default", "template": "e"},
                    ]
                }
            },
            "e",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "d"}]}}, None),
        ({"tokenizer_config.json": {"chat_template": None}}, None),
    ],
    ids=str,
)
def test_the_template_is_found_where_models_keep_it(tmp_path, files, template):
    for name, data in files.items():
        write(tmp_path, name, data)
    assert TokenizerConfig.from_folder(tmp_path).chat_template == template


@pytest.mark.parametrize("text", ["{", "[]", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "tokenizer_config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelSourceError, match=r"tokenizer_config\.json"):
        TokenizerConfig.from_folder(tmp_path)
