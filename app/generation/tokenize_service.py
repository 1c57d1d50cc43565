"""Text to token ids and back, for clients: off the event loop, however long the text is."""

from __future__ import annotations

from app.api.tokenize_request import MAX_TEXT_CHARS, DetokenizeRequest, TokenizeRequest
from app.api.tokenize_schemas import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo
from app.errors import InvalidRequestError
from app.generation.generation_service import GenerationService
from app.text.chat_renderer import ChatRenderer
from app.text.tokenizer_config import TokenizerConfig


class TokenizeService:
    """The tokenizer as the completions of this server use it."""

    def __init__(
        self, generations: GenerationService, renderer: ChatRenderer, config: TokenizerConfig
    ) -> None:
        self._generations = generations
        self._renderer = renderer
        self._config = config
        self._tokenizer = generations.tokenizer
        self._threads = generations.tokenizer_threads

    async def tokenize(self, body: TokenizeRequest) -> TokenizeAnswer:
        model = self._generations.require_model(body.model)
        text = await self._text(body)

        def tokenize() -> TokenizeAnswer:
            encode = self._tokenizer.encode
            token_ids = encode(text, add_special_tokens=body.adds_special_tokens)
            names = map(self._tokenizer.token_text, token_ids)
            return {
                "count": len(token_ids),
                "max_model_len": model.max_model_len,
                "tokens": token_ids,
                "token_strs": list(names) if body.return_token_strs else None,
            }

        return await self._threads.run(tokenize, num_chars=len(text))

    async def detokenize(self, body: DetokenizeRequest) -> DetokenizeAnswer:
        model = self._generations.require_model(body.model)
        token_ids = body.tokens
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < model.vocab_size:
            raise InvalidRequestError(
                f"Invalid 'tokens': token ids must be from 0 to {model.vocab_size - 1}.",
                param="tokens",
                code="invalid_token_id",
            )
        text = await self._threads.run(
            lambda: self._tokenizer.decode(token_ids, skip_special_tokens=False),
            num_chars=len(token_ids),
        )
        return {"prompt": text}

    def info(self) -> TokenizerInfo:
        model = self._generations.require_model(None)
        special_tokens = self._config.special_tokens
        return {
            "tokenizer_class": self._config.tokenizer_class,
            "bos_token": special_tokens.get("bos_token"),
            "eos_token": special_tokens.get("eos_token"),
            "pad_token": special_tokens.get("pad_token"),
            "unk_token": special_tokens.get("unk_token"),
            "chat_template": self._config.chat_template,
            "vocab_size": model.vocab_size,
            "max_model_len": model.max_model_len,
        }

    async def _text(self, body: TokenizeRequest) -> str:
        if body.messages is None:
            return body.prompt or ""
        text = await self._renderer.render(body.messages, body)
        if len(text) > MAX_TEXT_CHARS:
            raise InvalidRequestError(
                f"The messages make more than {MAX_TEXT_CHARS} characters.", param="messages"
            )
        return text
