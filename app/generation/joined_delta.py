"""All that a generation says, put together: one delta for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from app.generation.choice_decoder import ChoiceDelta
from app.generation.generation import Generation


async def joined_deltas(generation: Generation) -> list[ChoiceDelta]:
    """Runs the generation to its end."""
    deltas: list[list[ChoiceDelta]] = [[] for _ in generation.choices]
    async with aclosing(generation.deltas()) as generated:
        async for changes in generated:
            for delta in changes:
                deltas[delta.index].append(delta)
    return [_joined(pieces) for pieces in deltas]


def _joined(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    return ChoiceDelta(
        index=deltas[-1].index,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=[entry for delta in deltas for entry in delta.logprobs],
        finish_reason=deltas[-1].finish_reason,
        prompt_logprobs=next(
            (delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), None
        ),
    )
