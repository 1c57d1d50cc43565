"""The drafter: proposers in, one draft per request out, and what it learns from the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.messages import AddRequest, DraftKind, SamplingParams
from engine.request import Request
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.proposer import DraftRequest, Proposal


class FixedProposer:
    """Proposes the same tokens, with the same confidence, to everybody."""

    def __init__(self, kind: DraftKind, token_ids: Sequence[int], confidence: float = 0.75) -> None:
        self.kind = kind
        self.token_ids = tuple(token_ids)
        self.confidence = confidence
        self.wanted: list[int] = []

    def propose(self, wanted: Sequence[DraftRequest]) -> Mapping[str, Proposal]:
        self.wanted += [draft_request.max_tokens for draft_request in wanted]
        proposal = Proposal(self.token_ids, (self.confidence,) * len(self.token_ids))
        return {d.request.request_id: proposal.cut(d.max_tokens) for d in wanted}

    def finish(self, request: Request) -> None:
        pass


def make_drafter(*proposers: FixedProposer) -> Drafter:
    controller = DraftLengthController(num_speculative_tokens=7)
    for num_tokens in range(1, 65):
        controller.cost.observe(num_tokens, 0.020 + 0.001 * num_tokens)
    controller.cost.observe_drafting(1, 0.001)
    return Drafter(proposers, controller)


def make_request(**fields: int) -> Request:
    params = SamplingParams(max_tokens=100)
    message = AddRequest(request_id="r", prompt_token_ids=[1], sampling_params=params, **fields)
    return Request.from_message(message, eos_token_ids=(), max_model_len=1000)


def test_a_guess_with_clearly_more_expected_tokens_is_taken() -> None:
    short, long = FixedProposer("grammar", [1], 0.99), FixedProposer("suffix", [1, 2, 3], 0.9)
    draft = make_drafter(short, long).draft([make_request()])["r"]
    assert (draft.kind, draft.token_ids) == ("suffix", (1, 2, 3))


def test_of_guesses_that_are_worth_nearly_the_same_the_first_is_taken() -> None:
    proposers = [FixedProposer("prediction", [1, 2]), FixedProposer("suffix", [3, 4], 0.8)]
    assert make_drafter(*proposers).draft([make_request()])["r"].kind == "prediction"


def test_a_request_without_speculation_is_not_asked_for() -> None:
    lookup, model = FixedProposer("suffix", [1, 2]), FixedProposer("draft_model", [3, 4])
    assert make_drafter(lookup, model).draft([make_request(num_speculative_tokens=0)]) == {}
    assert lookup.wanted == model.wanted == []


def test_a_guess_that_is_not_worth_a_token_is_not_drafted_but_learned_from() -> None:
    drafter, request = make_drafter(FixedProposer("suffix", [1, 2, 3])), make_request()
    for _ in range(50):
        drafter.draft([request])
        drafter.observe(request, [9])
    assert drafter.draft([request]) == {}
    for _ in range(50):
        drafter.draft([request])
        drafter.observe(request, [1])
    assert drafter.draft([request])["r"].token_ids == (1, 2, 3)


def test_a_model_drafts_where_lookups_are_worth_less() -> None:
    for confidence, kind in ((0.99, "suffix"), (0.1, "draft_model")):
        lookup = FixedProposer("suffix", [1, 2, 3, 4], confidence)
        model = FixedProposer("draft_model", [5, 6, 7, 8])
        assert make_drafter(lookup, model).draft([make_request()])["r"].kind == kind
        assert bool(model.wanted) == (kind == "draft_model")


def test_a_finished_request_is_learned_from_no_more() -> None:
    drafter, request = make_drafter(FixedProposer("suffix", [1, 2, 3])), make_request()
    drafter.draft([request])
    drafter.finish(request)
    before = drafter.controller.survivals(request, "suffix", Proposal((1,), (0.75,)))
    drafter.observe(request, [9])
    assert drafter.controller.survivals(request, "suffix", Proposal((1,), (0.75,))) == before
