"""From a checked body and its prompts to a generation: what completions and chat do alike."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

import msgspec

from app.api.generation_request import GenerationRequest, joined_text
from app.dispatch.engine_client import EngineClient
from app.errors import ModelNotFoundError
from app.generation.choice_decoder import ChoiceDecoder
from app.generation.generation import Choice, Generation
from app.generation.request_context import RequestContext
from app.generation.request_limits import RequestLimits
from app.metrics import Metrics
from app.settings import Settings
from app.text.bad_words import bad_word_token_ids
from app.text.grammar import GrammarResolver
from app.text.prompt import Prompt
from app.text.prompt_resolver import PromptResolver
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_threads import TokenizerThreads
from engine.messages import AddRequest, EngineReady, SamplingParams

logger = logging.getLogger(__name__)


class GenerationService:
    """Makes generations; holds none."""

    def __init__(
        self,
        settings: Settings,
        engine_client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        grammars: GrammarResolver | None = None,
    ) -> None:
        self.model_name = settings.model_name
        self.tokenizer = tokenizer
        self.tokenizer_threads = TokenizerThreads()
        self.prompts = PromptResolver(tokenizer, self.tokenizer_threads)
        self._limits = RequestLimits(settings)
        self._engine_client = engine_client
        self._metrics = metrics
        self._grammars = grammars

    def require_model(self, name: str | None) -> EngineReady:
        """The model that is served, if it is the one asked for; None asks for any."""
        if name not in (None, self.model_name):
            raise ModelNotFoundError(
                f"The model does not exist; this server has '{self.model_name}'.", param="model"
            )
        return self._engine_client.require_model()

    async def create(
        self,
        generation_id: str,
        body: GenerationRequest,
        prompts: Sequence[Prompt],
        context: RequestContext,
        *,
        echo: bool = False,
    ) -> Generation:
        """A generation that is certain to be valid; the engine has not heard of it yet."""
        model = self.require_model(body.model)
        self._limits.check(body, model)
        self._limits.check_size(body, prompts, model)
        seed = secrets.randbits(63) if body.seed is None else body.seed
        logger.info("%s: %d prompts, n=%d, seed %d", generation_id, len(prompts), body.n, seed)
        params = await self._sampling_params(body, seed, model)
        prediction = await self._prediction_token_ids(body, model)
        choices: list[Choice] = []
        for prompt in prompts:
            for choice_index in range(body.num_candidates):
                index = len(choices)
                room = model.max_model_len - len(prompt.token_ids)
                request = AddRequest(
                    request_id=f"{generation_id}-{index}-{secrets.token_hex(4)}",
                    prompt_token_ids=prompt.token_ids,
                    sampling_params=_for_choice(params, choice_index=choice_index, room=room),
                    num_speculative_tokens=body.num_speculative_tokens,
                    prediction_token_ids=prediction,
                    cache_salt=body.cache_salt or "",
                    priority=body.priority,
                )
                decoder = ChoiceDecoder(index, body, prompt, self.tokenizer, echo=echo)
                choices.append(Choice(request, decoder))
        return Generation(
            choices,
            engine_client=self._engine_client,
            metrics=self._metrics,
            context=context,
            timeout=body.timeout,
        )

    async def _sampling_params(
        self, body: GenerationRequest, seed: int, model: EngineReady
    ) -> SamplingParams:
        """The engine's view of the body, the same for all of its choices."""
        wanted = body.max_output_tokens
        num_logprobs = 0 if body.is_ranked else None
        return SamplingParams(
            max_tokens=model.max_model_len if wanted is None else wanted,
            seed=seed,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=max(body.top_k, 0),
            min_p=body.min_p,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias={int(token_id): bias for token_id, bias in body.logit_bias.items()},
            allowed_token_ids=body.allowed_token_ids,
            bad_words=await self._bad_words(body),
            grammar=await self._grammar(body),
            min_tokens=body.min_tokens,
            stop_token_ids=self._stop_token_ids(body),
            ignore_eos=body.ignore_eos,
            num_logprobs=num_logprobs if body.num_logprobs is None else body.num_logprobs,
            num_prompt_logprobs=body.num_prompt_logprobs,
        )

    async def _bad_words(self, body: GenerationRequest) -> list[list[int]]:
        words = body.bad_words
        if not words:
            return []
        return await self.tokenizer_threads.run(
            lambda: bad_word_token_ids(words, self.tokenizer), num_chars=sum(map(len, words))
        )

    async def _grammar(self, body: GenerationRequest) -> str | None:
        if self._grammars is None:
            return None
        return await self._grammars.resolve(body)

    async def _prediction_token_ids(self, body: GenerationRequest, model: EngineReady) -> list[int]:
        """As much of the prediction as the context could hold."""
        if body.prediction is None:
            return []
        max_chars = model.max_model_len * self.tokenizer.max_chars_per_token
        text = joined_text(body.prediction.content)[:max_chars]
        token_ids = await self.tokenizer_threads.run(
            lambda: self.tokenizer.encode(text, add_special_tokens=False), num_chars=len(text)
        )
        return token_ids[: model.max_model_len]

    def _stop_token_ids(self, body: GenerationRequest) -> list[int]:
        """A special token may be named by its text, which may not occur in the output."""
        named = map(self.tokenizer.special_token_id, body.stop_strings)
        found = [token_id for token_id in named if token_id is not None]
        return list(dict.fromkeys([*body.stop_token_ids, *found]))


def _for_choice(params: SamplingParams, *, choice_index: int, room: int) -> SamplingParams:
    """At most `room` tokens fit into the context."""
    max_tokens = min(params.max_tokens, room)
    return msgspec.structs.replace(
        params,
        choice_index=choice_index,
        max_tokens=max_tokens,
        min_tokens=min(params.min_tokens, max_tokens),
    )
