"""From a request's body to a completion that can run: the checks that need the model are here."""

from __future__ import annotations

import logging
import secrets

from app.choice_decoder import ChoiceDecoder
from app.completion import Completion, new_completion_id
from app.engine_client import EngineClient
from app.errors import InvalidRequestError, ModelNotFoundError
from app.generation import Choice, Generation
from app.metrics import Metrics
from app.prompt import Prompt, resolve_prompts
from app.schemas import CompletionRequest
from app.settings import Settings
from app.tokenizer import Tokenizer
from engine.messages import AddRequest, EngineReady, SamplingParams

logger = logging.getLogger(__name__)


class CompletionService:
    """Makes completions; holds no request."""

    def __init__(
        self,
        settings: Settings,
        engine_client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._engine_client = engine_client
        self._tokenizer = tokenizer
        self._metrics = metrics

    async def create(self, body: CompletionRequest) -> Completion:
        """A completion that is certain to be accepted; the engine has not heard of it yet."""
        model_name = self._settings.model_name
        if body.model not in (None, model_name):
            raise ModelNotFoundError(
                f"The model does not exist; this server has '{model_name}'.", param="model"
            )
        model = self._engine_client.require_model()
        self._check(body, model)
        prompts = await resolve_prompts(body.prompt, self._tokenizer, model)
        completion_id = new_completion_id()
        choices = self._choices(completion_id, body, prompts, model)
        generation = Generation(choices, engine_client=self._engine_client, metrics=self._metrics)
        return Completion(completion_id, body, generation, model=model_name)

    def _check(self, body: CompletionRequest, model: EngineReady) -> None:
        """Limits that are the server's or the model's."""
        limits = {
            "logprobs": (body.logprobs or 0, self._settings.max_logprobs),
            "stop": (len(body.stop_strings), self._settings.max_num_stop_strings),
            "speculative": (body.num_speculative_tokens or 0, model.num_speculative_tokens),
        }
        for param, (value, maximum) in limits.items():
            if value > maximum:
                raise InvalidRequestError(f"Invalid '{param}': the most is {maximum}.", param=param)
        for param, token_ids in (
            ("logit_bias", [int(token_id) for token_id in body.logit_bias]),
            ("stop_token_ids", body.stop_token_ids),
        ):
            if any(not 0 <= token_id < model.vocab_size for token_id in token_ids):
                raise InvalidRequestError(
                    f"Invalid '{param}': token ids must be from 0 to {model.vocab_size - 1}.",
                    param=param,
                    code="invalid_token_id",
                )

    def _choices(
        self,
        completion_id: str,
        body: CompletionRequest,
        prompts: list[Prompt],
        model: EngineReady,
    ) -> list[Choice]:
        seed = secrets.randbits(63) if body.seed is None else body.seed
        logger.info("%s: %d prompts, n=%d, seed %d", completion_id, len(prompts), body.n, seed)
        choices: list[Choice] = []
        for prompt in prompts:
            for choice_index in range(body.n):
                index = len(choices)
                request = AddRequest(
                    request_id=f"{completion_id}-{index}",
                    prompt_token_ids=prompt.token_ids,
                    sampling_params=sampling_params(
                        body,
                        seed=seed,
                        choice_index=choice_index,
                        max_tokens=model.max_model_len - len(prompt.token_ids),
                    ),
                    num_speculative_tokens=body.num_speculative_tokens,
                )
                choices.append(Choice(request, ChoiceDecoder(index, body, prompt, self._tokenizer)))
        return choices


def sampling_params(
    body: CompletionRequest, *, seed: int, choice_index: int, max_tokens: int
) -> SamplingParams:
    """The engine's view of the body; at most `max_tokens` fit into the context."""
    max_tokens = min(body.max_tokens, max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        choice_index=choice_index,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias={int(token_id): bias for token_id, bias in body.logit_bias.items()},
        min_tokens=min(body.min_tokens, max_tokens),
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        num_logprobs=body.logprobs,
        num_prompt_logprobs=body.logprobs if body.echo else None,
    )
