"""Answers, prompts and reports whose numbers can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from app.bench.answer import Answer, Piece
from app.bench.chunk import SpeculativeDecoding
from app.bench.level import Level
from app.bench.prompt import Prompt
from app.bench.report import Report
from app.bench.side import default_sides

JSON = Prompt("json", "{", 8, id="json-0")
CODE = Prompt("code", "def", 8, id="code-0")


def answer(
    *pieces: tuple[float, int],
    started: float = 0.0,
    ended: float = 1.0,
    histogram: Sequence[int] = (),
    num_draft_tokens: int = 0,
    num_cached_tokens: int = 0,
) -> Answer:
    """`pieces` are seconds and tokens; a draft with i accepted tokens is in `histogram[i]`."""
    return Answer(
        text="text",
        started=started,
        ended=ended,
        num_tokens=sum(num_tokens for _, num_tokens in pieces),
        num_cached_tokens=num_cached_tokens,
        pieces=[Piece(seconds, num_tokens) for seconds, num_tokens in pieces],
        speculation=SpeculativeDecoding(
            num_spec_steps=sum(histogram),
            num_draft_tokens=num_draft_tokens,
            num_accepted_draft_tokens=sum(i * num for i, num in enumerate(histogram)),
            acceptance_histogram=list(histogram),
        ),
    )


def plain() -> Answer:
    """4 tokens in 2 seconds, none drafted."""
    return answer((0.5, 1), (0.5, 1), (0.5, 1), (0.5, 1), ended=2.0)


def drafted(*, started: float = 0.0) -> Answer:
    """4 tokens in 1 second; of one draft of 4 tokens 2 were accepted."""
    return answer(
        (0.4, 1),
        (0.6, 3),
        started=started,
        ended=started + 1.0,
        histogram=[0, 0, 1],
        num_draft_tokens=4,
    )


def level(concurrency: int = 1) -> Level:
    """A prompt of JSON and one of code on both sides; `concurrency` of each at a time."""
    made = Level(concurrency)
    for prompt in (JSON, CODE):
        made.add_batch("off", [prompt] * concurrency, [plain()] * concurrency)
        made.add_batch("on", [prompt] * concurrency, [drafted()] * concurrency)
    return made


def report(*concurrencies: int) -> Report:
    return Report("tiny", default_sides(), [level(each) for each in concurrencies or (1,)])
