"""Turns what the engine says about one choice into text, token by token: the tokens of a step are
read one after the other, so that it does not matter how many came together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.api.generation_request import GenerationRequest
from app.api.schemas import PromptLogprobs
from app.generation.logprobs import LogprobEntry, logprob_entry, prompt_logprobs, token_id_name
from app.text.detokenizer import create_detokenizer
from app.text.prompt import Prompt
from app.text.stop_strings import StopStringMatcher
from app.text.tokenizer import Tokenizer
from engine.messages import FinishReason, RequestOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What is new in one choice. `prompt_logprobs` come once, if they were asked for."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobEntry]
    finish_reason: FinishReason | None
    prompt_logprobs: PromptLogprobs | None = None

    def __bool__(self) -> bool:
        return bool(
            self.text
            or self.logprobs
            or self.token_ids
            or self.finish_reason
            or self.prompt_logprobs
        )


class ChoiceDecoder:
    """Text, logprobs, stop strings and the finish reason of one choice."""

    def __init__(
        self,
        index: int,
        body: GenerationRequest,
        prompt: Prompt,
        tokenizer: Tokenizer,
        *,
        echo: bool,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0
        self._index = index
        self._body = body
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._detokenizer = create_detokenizer(
            tokenizer, context=prompt.token_ids, skip_special_tokens=body.skip_special_tokens
        )
        self._stop_strings = StopStringMatcher(
            body.stop_strings, keep_match=body.include_stop_str_in_output
        )
        self._echo = echo
        self._text = prompt.echo_text(tokenizer) if echo else ""
        self._num_echo_chars = len(self._text)
        self._num_taken_chars = 0
        self._token_ids: list[int] = []
        self._entries: list[LogprobEntry] = []
        self._prompt_logprobs: PromptLogprobs | None = None
        self._sum_logprobs = 0.0

    @property
    def mean_logprob(self) -> float:
        """Of the generated tokens, where the engine was asked for their logprobs."""
        return self._sum_logprobs / max(self.num_tokens, 1)

    def token_name(self, token_id: int) -> str:
        """The token as logprobs show it."""
        as_token_id = self._body.return_tokens_as_token_ids
        return token_id_name(token_id) if as_token_id else self._tokenizer.token_text(token_id)

    def append(self, output: RequestOutput) -> int:
        """Returns how many of the output's tokens belong to the choice: none behind a stop."""
        num_tokens_before = self.num_tokens
        if output.prompt_logprobs is not None:
            self._append_prompt(output.prompt_logprobs)
        for position, token_id in enumerate(output.new_token_ids):
            self._append_token(output, position, token_id)
            if self._stop_strings.matched:
                break
        if output.finish_reason is not None and not self._stop_strings.matched:
            self._finish(output.finish_reason)
        if self._stop_strings.matched:
            self.finish_reason = "stop"
        return self.num_tokens - num_tokens_before

    def take(self) -> ChoiceDelta:
        """What is new since the last call."""
        self._num_taken_chars += len(self._text)
        delta = ChoiceDelta(
            self._index,
            self._text,
            self._token_ids,
            self._take_entries(),
            self.finish_reason,
            self._prompt_logprobs,
        )
        self._text, self._token_ids, self._prompt_logprobs = "", [], None
        return delta

    def _append_token(self, output: RequestOutput, position: int, token_id: int) -> None:
        self.num_tokens += 1
        self._token_ids.append(token_id)
        is_last = position == len(output.new_token_ids) - 1
        if is_last and output.stop_token_id is not None and not self._keeps_stop:
            self._feed(self._detokenizer.finish())
            offset = self._detokenizer.num_chars
        else:
            text = self._detokenizer.append(token_id)
            offset = self._detokenizer.token_offset
            self._feed(text)
        if output.logprobs is not None:
            self._append_logprobs(output.logprobs[position], self._num_echo_chars + offset)

    def _append_logprobs(self, logprobs: TokenLogprobs, text_offset: int) -> None:
        self._sum_logprobs += logprobs.logprob
        num_top = self._body.num_logprobs
        if num_top is not None:
            self._entries.append(logprob_entry(logprobs, num_top=num_top, text_offset=text_offset))

    @property
    def _keeps_stop(self) -> bool:
        return self._body.include_stop_str_in_output

    def _finish(self, finish_reason: FinishReason) -> None:
        self._feed(self._detokenizer.finish())
        if not self._stop_strings.matched:
            self._text += self._stop_strings.flush()
        self.finish_reason = finish_reason

    def _feed(self, text: str) -> None:
        if self._stop_strings.matched:
            return
        may_stop = self.num_tokens >= self._body.min_tokens
        self._text += self._stop_strings.feed(text, may_stop=may_stop)

    def _append_prompt(self, logprobs: list[TokenLogprobs]) -> None:
        if self._echo and self._body.num_logprobs is not None:
            self._entries += self._prompt_entries(logprobs, self._body.num_logprobs)
        num_top = self._body.prompt_logprobs
        if num_top is not None:
            self._prompt_logprobs = prompt_logprobs(logprobs, num_top, self.token_name)

    def _prompt_entries(self, logprobs: list[TokenLogprobs], num_top: int) -> list[LogprobEntry]:
        offsets = self._prompt.text_offsets(self._tokenizer)
        return [
            LogprobEntry(self._prompt.token_ids[0], None, [], offsets[0]),
            *(
                logprob_entry(each, num_top=num_top, text_offset=offset)
                for each, offset in zip(logprobs, offsets[1:], strict=True)
            ),
        ]

    def _take_entries(self) -> list[LogprobEntry]:
        """Tokens whose text is held back wait with it: a stop string may move their offset."""
        end = self._num_taken_chars
        if self.finish_reason is not None:
            entries = [
                replace(entry, text_offset=min(entry.text_offset, end)) for entry in self._entries
            ]
            self._entries = []
            return entries
        if not self._entries:
            return []
        num_ready = sum(entry.text_offset <= end for entry in self._entries)
        entries, self._entries = self._entries[:num_ready], self._entries[num_ready:]
        return entries
