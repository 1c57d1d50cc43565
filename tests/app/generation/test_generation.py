from __future__ import annotations

from contextlib import aclosing

import pytest
from fake_engine import says

from app.api.completion_request import CompletionRequest
from app.generation.completion_service import CompletionService
from app.generation.generation_service import GenerationService
from app.generation.request_context import RequestContext
from app.settings import Settings
from engine.messages import RequestOutput

CONTEXT = RequestContext("id")


@pytest.fixture
def service(engine, byte_tokenizer, metrics) -> CompletionService:
    return CompletionService(GenerationService(Settings(), engine, byte_tokenizer, metrics))


async def test_a_choice_that_stops_frees_its_slot_while_others_go_on(
    service, engine, byte_tokenizer
):
    completion = await service.create(CompletionRequest(prompt="Hi", n=2, stop="llo"), CONTEXT)
    script = says(byte_tokenizer, " Hello 😀 world")
    engine.script = lambda request: [] if request.sampling_params.choice_index else script(request)
    async with aclosing(completion.chunks(idle_seconds=60)) as chunks:
        async for chunk in chunks:
            if chunk["choices"][0]["finish_reason"] is not None:
                break
        assert engine.aborted == [engine.requests[0].request_id]


async def test_a_closed_stream_aborts_and_counts_what_was_left(service, engine, sample):
    completion = await service.create(CompletionRequest(prompt="Hi"), CONTEXT)
    async with aclosing(completion.chunks(idle_seconds=60)) as chunks:
        await anext(chunks)
    assert engine.aborted == [engine.requests[0].request_id]
    assert sample("tandem_requests_total", finish_reason="abort") == 1
    assert sample("tandem_generation_tokens_total") == 1


async def test_silence_is_told_apart_from_the_end(service, engine):
    engine.script = lambda _: []
    completion = await service.create(CompletionRequest(prompt="Hi"), CONTEXT)
    async with aclosing(completion.chunks(idle_seconds=0.001)) as chunks:
        assert [await anext(chunks), await anext(chunks)] == [None, None]


async def test_outputs_that_came_together_are_one_delta(service, engine, byte_tokenizer):
    engine.script = lambda _: []
    completion = await service.create(CompletionRequest(prompt="Hi"), CONTEXT)
    async with aclosing(completion.chunks(idle_seconds=0.001)) as chunks:
        await anext(chunks)
        for token_id in byte_tokenizer.encode("abc"):
            output = RequestOutput(
                request_id=engine.requests[0].request_id, new_token_ids=[token_id]
            )
            engine.streams[0].put(output)
        chunk = await anext(chunks)
    assert chunk["choices"][0]["text"] == "abc"
