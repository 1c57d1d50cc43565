"""What one request may ask for, where the server or the model sets the limit."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.generation_request import GenerationRequest
from app.errors import InvalidRequestError
from app.settings import Settings
from app.text.prompt import Prompt
from engine.messages import EngineReady

MAX_NUM_CHOICES = 1024
# A token's logprob takes some 200 bytes until it is sent.
MAX_NUM_LOGPROBS = 4_000_000


class RequestLimits:
    """Raises InvalidRequestError, which names the field that asks for too much."""

    def __init__(self, settings: Settings) -> None:
        self._max_logprobs = settings.max_logprobs
        self._max_num_stop_strings = settings.max_num_stop_strings

    def check(self, body: GenerationRequest, model: EngineReady) -> None:
        """What can be said before the prompts are read."""
        for param, value, maximum in (
            (body.logprobs_param, body.num_logprobs, self._max_logprobs),
            ("prompt_logprobs", body.prompt_logprobs, self._max_logprobs),
            ("stop", len(body.stop_strings), self._max_num_stop_strings),
            ("speculative", body.num_speculative_tokens, model.num_speculative_tokens),
        ):
            if value is not None and value > maximum:
                raise InvalidRequestError(f"Invalid '{param}': the most is {maximum}.", param=param)
        for param, token_ids in (
            ("logit_bias", [int(token_id) for token_id in body.logit_bias]),
            ("allowed_token_ids", body.allowed_token_ids or []),
            ("stop_token_ids", body.stop_token_ids),
        ):
            if any(not 0 <= token_id < model.vocab_size for token_id in token_ids):
                raise InvalidRequestError(
                    f"Invalid '{param}': token ids must be from 0 to {model.vocab_size - 1}.",
                    param=param,
                    code="invalid_token_id",
                )

    def check_size(
        self, body: GenerationRequest, prompts: Sequence[Prompt], model: EngineReady
    ) -> None:
        """How much there is to generate, and to keep until it is sent."""
        num_choices = len(prompts) * body.num_candidates
        if num_choices > MAX_NUM_CHOICES:
            raise InvalidRequestError(
                f"This asks for {num_choices} choices, over all prompts; the most is "
                f"{MAX_NUM_CHOICES}.",
                param="n",
            )
        num_logprobs = sum(_num_logprobs(body, prompt, model) for prompt in prompts)
        if num_logprobs > MAX_NUM_LOGPROBS:
            raise InvalidRequestError(
                f"This asks for up to {num_logprobs} logprobs, over all tokens and choices; the "
                f"most is {MAX_NUM_LOGPROBS}. Ask for fewer, for fewer tokens, or for fewer "
                "choices at once.",
                param="prompt_logprobs" if body.num_logprobs is None else body.logprobs_param,
            )


def _num_logprobs(body: GenerationRequest, prompt: Prompt, model: EngineReady) -> int:
    """The most that the choices for one prompt can need."""
    num_prompt_tokens = len(prompt.token_ids)
    room = model.max_model_len - num_prompt_tokens
    wanted = body.max_output_tokens
    num_tokens = room if wanted is None else min(wanted, room)
    num_top, num_prompt_top = body.num_logprobs, body.num_prompt_logprobs
    per_choice = 0 if num_top is None else num_tokens * (num_top + 1)
    per_choice += 0 if num_prompt_top is None else num_prompt_tokens * (num_prompt_top + 1)
    return per_choice * body.num_candidates
