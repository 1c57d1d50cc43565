"""Small tokenizers made on the spot, and the application over a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import tokenizers
from fake_engine import FakeEngineClient, says
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from app.main import create_app
from app.metrics import Metrics
from app.settings import Settings
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig

CORPUS = [
    "Hello world, this is a small test of a small tokenizer.",
    "你好，世界。今天天气很好，我们去散步。",
    "Emoji 😀😃 👩‍👩‍👧 and flags 🇩🇪 and a naïve café.",
]
# Short, since the fake engine has a context of 64 tokens.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE, whose token 0 is EOS; characters outside the corpus are split."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([tokenizers.AddedToken("<x y>", special=False)])
    return Tokenizer(backend)


@pytest.fixture(scope="session")
def llama_tokenizer() -> Tokenizer:
    """Characters, spaces as ▁ and bytes for the rest, as Llama 2; BOS is added."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = [*"▁abcdefghijklmnopqrstuvwxyzé好", "▁he", "llo", "▁world", "\ufffd"]
    vocab = {piece: index for index, piece in enumerate(["<unk>", "<s>", "</s>", *bytes_])}
    vocab |= {piece: len(vocab) + index for index, piece in enumerate(characters)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return Tokenizer(backend)


@pytest.fixture(params=["byte-level", "llama"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    name = {"byte-level": "byte_tokenizer", "llama": "llama_tokenizer"}[request.param]
    found: Tokenizer = request.getfixturevalue(name)
    return found


@pytest.fixture
def engine(byte_tokenizer: Tokenizer) -> FakeEngineClient:
    """Answers everything with " Hello 😀 world" and EOS."""
    script = says(byte_tokenizer, " Hello 😀 world")
    return FakeEngineClient(script, vocab_size=byte_tokenizer.vocab_size)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(model_name="tiny", max_num_seqs=8, num_speculative_tokens=4)


@pytest.fixture
def app(engine: FakeEngineClient, byte_tokenizer: Tokenizer, metrics: Metrics) -> FastAPI:
    settings = Settings(served_model_name="tiny", max_logprobs=5, max_num_stop_strings=3)
    config = TokenizerConfig({"eos_token": "<|end|>"}, CHAT_TEMPLATE)
    return create_app(settings, engine, byte_tokenizer, metrics, tokenizer_config=config)


@pytest.fixture
def app_with(
    engine: FakeEngineClient, byte_tokenizer: Tokenizer, metrics: Metrics
) -> Callable[..., FastAPI]:
    """The application with other settings."""

    def create(**settings: object) -> FastAPI:
        return create_app(
            Settings(served_model_name="tiny", **settings), engine, byte_tokenizer, metrics
        )

    return create


@pytest.fixture
def client_with(app_with: Callable[..., FastAPI]) -> Callable[..., httpx.AsyncClient]:
    """A client of the application with other settings."""

    def create(**settings: object) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=app_with(**settings), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://tandem")

    return create


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://tandem") as client:
        yield client


@pytest.fixture
def sample(metrics: Metrics) -> Callable[..., float]:
    """The value of one series as a scrape shows it."""

    def read(name: str, **labels: str) -> float:
        values = {
            (found.name, *sorted(found.labels.items())): found.value
            for family in text_string_to_metric_families(metrics.render().decode())
            for found in family.samples
        }
        return values[(name, *sorted(labels.items()))]

    return read
