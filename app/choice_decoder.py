"""Turns what the engine says about one choice into text, token by token: the tokens of a step are
read one after the other, so that it does not matter how many came together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.detokenizer import create_detokenizer
from app.logprobs import LogprobEntry, logprob_entry
from app.prompt import Prompt
from app.schemas import CompletionRequest
from app.stop_strings import StopStringMatcher
from app.tokenizer import Tokenizer
from engine.messages import FinishReason, RequestOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What is new in one choice."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobEntry]
    finish_reason: FinishReason | None

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs or self.token_ids or self.finish_reason)


class ChoiceDecoder:
    """Text, logprobs, stop strings and the finish reason of one choice."""

    def __init__(
        self, index: int, body: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_tokens = 0
        self._index = index
        self._body = body
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._detokenizer = create_detokenizer(tokenizer, context=prompt.token_ids)
        self._stop_strings = StopStringMatcher(body.stop_strings)
        self._text = prompt.echo_text(tokenizer) if body.echo else ""
        self._num_echo_chars = len(self._text)
        self._num_taken_chars = 0
        self._token_ids: list[int] = []
        self._entries: list[LogprobEntry] = []

    def append(self, output: RequestOutput) -> int:
        """Returns how many of the output's tokens belong to the choice: none behind a stop."""
        num_tokens_before = self.num_tokens
        if output.prompt_logprobs is not None:
            self._entries += self._prompt_entries(output.prompt_logprobs)
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
            self._index, self._text, self._token_ids, self._take_entries(), self.finish_reason
        )
        self._text, self._token_ids = "", []
        return delta

    def _append_token(self, output: RequestOutput, position: int, token_id: int) -> None:
        self.num_tokens += 1
        self._token_ids.append(token_id)
        offset = self._detokenizer.num_chars
        is_last = position == len(output.new_token_ids) - 1
        if not (is_last and output.stop_token_id is not None):
            text = self._detokenizer.append(token_id)
            offset = self._detokenizer.token_offset
            self._feed(text)
        if output.logprobs is not None:
            offset += self._num_echo_chars
            entry = logprob_entry(self._tokenizer, output.logprobs[position], text_offset=offset)
            self._entries.append(entry)

    def _finish(self, finish_reason: FinishReason) -> None:
        self._feed(self._detokenizer.finish())
        if not self._stop_strings.matched:
            self._text += self._stop_strings.flush()
        self.finish_reason = finish_reason

    def _feed(self, text: str) -> None:
        may_stop = self.num_tokens >= self._body.min_tokens
        self._text += self._stop_strings.feed(text, may_stop=may_stop)

    def _prompt_entries(self, logprobs: list[TokenLogprobs]) -> list[LogprobEntry]:
        offsets = self._prompt.text_offsets(self._tokenizer)
        first = self._tokenizer.token_text(self._prompt.token_ids[0])
        return [
            LogprobEntry(first, None, None, offsets[0]),
            *(
                logprob_entry(self._tokenizer, each, text_offset=offset)
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
        num_ready = sum(entry.text_offset <= end for entry in self._entries)
        entries, self._entries = self._entries[:num_ready], self._entries[num_ready:]
        return entries
