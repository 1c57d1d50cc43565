"""From the body of /v1/completions to a completion that can run."""

from __future__ import annotations

from app.api.completion_request import CompletionRequest
from app.generation.completion import Completion
from app.generation.generation_service import GenerationService
from app.generation.request_context import RequestContext
from app.text.prompt import Prompt
from engine.messages import EngineReady


class CompletionService:
    """Makes completions; holds none."""

    def __init__(self, generations: GenerationService) -> None:
        self._generations = generations

    async def create(self, body: CompletionRequest, context: RequestContext) -> Completion:
        """A completion that is certain to be valid; the engine has not heard of it yet."""
        service = self._generations
        prompts = await self._prompts(body, service.require_model(body.model))
        completion_id = f"cmpl-{body.request_id or context.request_id}"
        generation = await service.create(completion_id, body, prompts, context, echo=body.echo)
        return Completion(completion_id, body, generation, model=service.model_name)

    async def _prompts(self, body: CompletionRequest, model: EngineReady) -> list[Prompt]:
        resolver = self._generations.prompts
        if body.suffix and isinstance(body.prompt, str):
            gap = await resolver.resolve_gap(
                body.prompt, body.suffix, model, add_special_tokens=body.add_special_tokens
            )
            return [gap]
        return await resolver.resolve(
            body.prompts,
            model,
            add_special_tokens=body.add_special_tokens,
            max_num_tokens=body.max_prompt_tokens(model.max_model_len),
        )
