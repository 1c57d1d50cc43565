"""A backend whose logits can be computed by hand, and which notices every mistake about KV.

The next token is `3 * (sum of all tokens so far) + 1 (mod vocab_size)`; the logits around it depend
on the same sum. A slot stores tokens instead of keys and values, so a row that starts where the
slot's tokens are not those of the request gives another text.

As a text for grammars, token 0 is the end, 1 to 26 are letters, and the rest are `TOKENS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from llguidance import LLTokenizer

from engine.backends.base import ForwardRow, ModelInfo
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler
from engine.model_runner import ModelRunner
from engine.scheduler import Scheduler
from engine.slots import SlotTable
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.proposer import DraftRequest, Proposal, Proposer

VOCAB_SIZE = 32
EOS = 0
TOKENS = [b"", *(bytes([97 + i]) for i in range(26)), b"ab", b"abc", b'"', b'{"', b'":']


def next_token(token_ids: Sequence[int], vocab_size: int = VOCAB_SIZE) -> int:
    return (3 * sum(token_ids) + 1) % vocab_size


def continuation(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy text of the fake model."""
    text = list(token_ids)
    for _ in range(num_tokens):
        text.append(next_token(text))
    return text[len(token_ids) :]


class FakeTokenizer:
    """What llguidance asks of a tokenizer that is not a file."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = TOKENS
    special_token_ids = (EOS,)
    is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        """The longest token first."""
        data, token_ids = text.encode(), []
        while data:
            token_id = max(
                (i for i, token in enumerate(TOKENS) if token and data.startswith(token)),
                key=lambda i: len(TOKENS[i]),
            )
            token_ids.append(token_id)
            data = data[len(TOKENS[token_id]) :]
        return token_ids


def text_of(token_ids: Sequence[int]) -> str:
    return b"".join(TOKENS[token_id] for token_id in token_ids).decode()


def grammar_compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: LLTokenizer(FakeTokenizer()))


class FakeBackend:
    def __init__(
        self,
        *,
        num_slots: int = 4,
        max_model_len: int = 64,
        eos_token_ids: tuple[int, ...] = (),
        vocab_size: int = VOCAB_SIZE,
    ) -> None:
        self.info = ModelInfo(
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            num_slots=num_slots,
            widths=(1, 2, 4, 8),
            eos_token_ids=eos_token_ids,
            dtype="float32",
        )
        self.slots: list[list[int]] = [[] for _ in range(num_slots)]
        self.forwards: list[tuple[ForwardRow, ...]] = []

    def warmup(self) -> None:
        pass

    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        assert len({row.slot_id for row in rows}) == len(rows)
        self.forwards.append(rows)
        logits = [row_logits for row in rows for row_logits in self._row(row)]
        return torch.tensor(logits, dtype=torch.float32).reshape(-1, self.info.vocab_size)

    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        assert len(self.slots[source_slot]) >= num_tokens
        self.slots[target_slot] = self.slots[source_slot][:num_tokens]

    def close(self) -> None:
        pass

    def _row(self, row: ForwardRow) -> list[list[float]]:
        slot = self.slots[row.slot_id]
        assert row.start_position <= len(slot), "a gap in the KV cache"
        assert row.end_position <= self.info.max_model_len, "a write behind the slot"
        del slot[row.start_position :]
        logits = []
        for token_id in row.token_ids:
            slot.append(token_id)
            best = next_token(slot, self.info.vocab_size)
            logits.append(
                [float(-((i - best) % self.info.vocab_size)) for i in range(self.info.vocab_size)]
            )
        return logits[len(logits) - row.num_logits :]


class ScriptedProposer:
    """Proposes from the fake model's own text, with a token spoiled at the positions given."""

    kind = "suffix"

    def __init__(self, *, wrong_every: int | None = None) -> None:
        self._wrong_every = wrong_every

    def propose(self, wanted: Sequence[DraftRequest]) -> dict[str, Proposal]:
        drafts = {d.request.request_id: self._draft(d) for d in wanted}
        return {name: Proposal(draft, (0.9,) * len(draft)) for name, draft in drafts.items()}

    def finish(self, request: object) -> None:
        pass

    def _draft(self, wanted: DraftRequest) -> tuple[int, ...]:
        known = wanted.request.token_ids
        draft = continuation(known, wanted.max_tokens)
        if self._wrong_every is not None:
            for i in range(len(draft)):
                if (len(known) + i) % self._wrong_every == 0:
                    draft[i] = (draft[i] + 1) % VOCAB_SIZE
        return tuple(draft)


def build_core(
    backend: FakeBackend | None = None,
    proposers: Sequence[Proposer] = (),
    *,
    max_num_batched_tokens: int = 8,
    max_consecutive_prefills: int = 1,
    max_consecutive_decodes: int = 1,
    enable_prefix_caching: bool = True,
    grammars: GrammarCompiler | None = None,
    make_model_runner: Callable[[FakeBackend, Drafter], ModelRunner] = ModelRunner,
) -> EngineCore:
    backend = backend or FakeBackend()
    drafter = Drafter(proposers, DraftLengthController(num_speculative_tokens=7))
    slots = SlotTable(backend.info.num_slots)
    scheduler = Scheduler(
        slots,
        max_num_batched_tokens=max_num_batched_tokens,
        max_consecutive_prefills=max_consecutive_prefills,
        max_consecutive_decodes=max_consecutive_decodes,
        enable_prefix_caching=enable_prefix_caching,
    )
    return EngineCore(
        backend.info,
        scheduler=scheduler,
        slots=slots,
        model_runner=make_model_runner(backend, drafter),
        drafter=drafter,
        grammars=grammars or grammar_compiler(),
    )
