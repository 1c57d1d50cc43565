from __future__ import annotations

import msgspec
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from app.errors import ContextLengthError, InvalidRequestError
from app.text.prompt_resolver import PromptResolver
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_threads import TokenizerThreads

FIM_NAMES = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
]


@pytest.fixture
def resolver(llama_tokenizer) -> PromptResolver:
    return PromptResolver(llama_tokenizer, TokenizerThreads())


@pytest.fixture
def model(engine, llama_tokenizer):
    return msgspec.structs.replace(engine.require_model(), vocab_size=llama_tokenizer.vocab_size)


@pytest.fixture
def infilling_tokenizer(request) -> Tokenizer:
    names = ["<unk>", "<s>", *request.param, "a", "b", "c"]
    vocab = {name: index for index, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(request.param)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return Tokenizer(backend)


async def test_a_bos_can_be_left_out(resolver, model, llama_tokenizer):
    [with_bos] = await resolver.resolve(["hello"], model)
    [without] = await resolver.resolve(["hello"], model, add_special_tokens=False)
    assert with_bos.token_ids == [1, *without.token_ids]
    for prompt in (with_bos, without):
        assert prompt.echo_text(llama_tokenizer) == "hello"


async def test_a_bos_that_the_client_wrote_itself_is_a_part_of_the_echo(
    resolver, model, llama_tokenizer
):
    [prompt] = await resolver.resolve(["<s>hello"], model, add_special_tokens=False)
    assert prompt.token_ids[0] == 1
    assert prompt.text_offsets(llama_tokenizer)[:2] == [0, 3]


async def test_a_truncated_text_keeps_its_bos(resolver, model, llama_tokenizer):
    [whole] = await resolver.resolve(["abcdefgh"], model)
    [prompt] = await resolver.resolve(["abcdefgh"], model, max_num_tokens=4)
    assert prompt.token_ids == [1, *whole.token_ids[-3:]]
    assert prompt.echo_text(llama_tokenizer) == "fgh"
    [without] = await resolver.resolve(
        ["abcdefgh"], model, max_num_tokens=4, add_special_tokens=False
    )
    assert without.token_ids == whole.token_ids[-4:]


async def test_a_truncation_to_one_token_keeps_the_last_one(resolver, model):
    [prompt] = await resolver.resolve(["abc"], model, max_num_tokens=1)
    [whole] = await resolver.resolve(["abc"], model)
    assert prompt.token_ids == whole.token_ids[-1:]


async def test_errors_name_the_field_that_the_prompt_came_from(resolver, model):
    with pytest.raises(ContextLengthError) as caught:
        await resolver.resolve(["a" * 1000], model, param="messages")
    assert caught.value.param == "messages"


@pytest.mark.parametrize("infilling_tokenizer", FIM_NAMES, indirect=True, ids=["bars", "plain"])
async def test_a_gap_is_put_between_the_tokens_that_the_model_knows(infilling_tokenizer, model):
    resolver = PromptResolver(infilling_tokenizer, TokenizerThreads())
    prompt = await resolver.resolve_gap("a b", "c", model, add_special_tokens=True)
    assert prompt.token_ids == [1, 2, 5, 6, 3, 7, 4]
    prompt = await resolver.resolve_gap("a", "", model, add_special_tokens=False)
    assert prompt.token_ids == [2, 5, 3, 4]


@pytest.mark.parametrize("infilling_tokenizer", FIM_NAMES[:1], indirect=True, ids=["bars"])
async def test_a_gap_must_fit_into_the_context(infilling_tokenizer, model):
    resolver = PromptResolver(infilling_tokenizer, TokenizerThreads())
    with pytest.raises(ContextLengthError):
        await resolver.resolve_gap("a " * 40, "b " * 40, model, add_special_tokens=True)
    for texts in (("a" * 10_000, "b"), ("a", "b" * 10_000)):
        with pytest.raises(ContextLengthError):
            await resolver.resolve_gap(*texts, model, add_special_tokens=True)


async def test_a_model_without_such_tokens_fills_no_gaps(resolver, model):
    with pytest.raises(InvalidRequestError) as caught:
        await resolver.resolve_gap("a", "b", model, add_special_tokens=True)
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")
