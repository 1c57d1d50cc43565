"""From checked messages to prompt text, off the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from app.api.chat_request import ChatMessage, ChatTemplateOptions
from app.text.chat_template import ChatTemplate
from app.text.tokenizer_threads import TokenizerThreads


class ChatRenderer:
    """What /v1/chat/completions and /tokenize do alike with messages."""

    def __init__(self, template: ChatTemplate, threads: TokenizerThreads) -> None:
        self._template = template
        self._threads = threads

    async def render(self, messages: Sequence[ChatMessage], options: ChatTemplateOptions) -> str:
        return await self._threads.run(
            lambda: self._template.render(
                [message.template_fields for message in messages],
                add_generation_prompt=options.adds_generation_prompt,
                continue_final_message=options.continue_final_message,
                variables=options.chat_template_kwargs,
            ),
            num_chars=sum(message.num_chars for message in messages),
        )
