"""From the body of /v1/chat/completions to a chat completion that can run."""

from __future__ import annotations

from app.api.chat_request import ChatRequest
from app.generation.chat_completion import ChatCompletion
from app.generation.generation_service import GenerationService
from app.generation.request_context import RequestContext
from app.text.chat_renderer import ChatRenderer


class ChatService:
    """Makes chat completions; holds none."""

    def __init__(self, generations: GenerationService, renderer: ChatRenderer) -> None:
        self._generations = generations
        self._renderer = renderer

    async def create(self, body: ChatRequest, context: RequestContext) -> ChatCompletion:
        """A chat completion that is certain to be valid; the engine has not heard of it yet."""
        service = self._generations
        model = service.require_model(body.model)
        text = await self._renderer.render(body.messages, body)
        prompts = await service.prompts.resolve(
            [text],
            model,
            add_special_tokens=body.add_special_tokens,
            max_num_tokens=body.max_prompt_tokens(model.max_model_len),
            param="messages",
        )
        chat_id = f"chatcmpl-{body.request_id or context.request_id}"
        generation = await service.create(chat_id, body, prompts, context)
        return ChatCompletion(
            chat_id, body, generation, model=service.model_name, tokenizer=service.tokenizer
        )
