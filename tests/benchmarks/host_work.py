"""Milliseconds of a decode step outside of the forward pass, by kind of request and step shape.

The backend returns ready-made logits, and the proposer knows the target's path: every draft is
accepted, which is the most work. `python -m tests.benchmarks.host_work` prints it.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from llguidance import LLMatcher

from app.model_source import default_cache_dir, resolve_model
from engine.backends.base import ForwardRow, ModelInfo
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler, load_tokenizer
from engine.messages import AddRequest, SamplingParams
from engine.model_runner import ModelRunner
from engine.scheduler import Scheduler
from engine.slots import SlotTable
from engine.spec_decode.controller import DraftLengthController
from engine.spec_decode.drafter import Drafter
from engine.spec_decode.proposer import DraftRequest, Proposal

VOCAB_SIZE = 49_152
MAX_MODEL_LEN = 2048
NUM_PROMPT_TOKENS = 256
NUM_LOGITS = 61
ROWS = (1, 8)
WIDTHS = (1, 4, 16)
_SCHEMA = """{"type": "array", "minItems": 999, "items": {
"type": "object", "required": ["name", "n"], "additionalProperties": false,
"properties": {"name": {"type": "string", "maxLength": 40}, "n": {"type": "integer"}}}}"""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T 1": {},
    "T 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_k 40": {"top_k": 40},
    "min_p 0.05": {"min_p": 0.05},
    "greedy, penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "greedy, logprobs 5": {"temperature": 0.0, "num_logprobs": 5},
    "greedy, grammar": {
        "temperature": 0.0,
        "grammar": LLMatcher.grammar_from_json_schema(
            _SCHEMA, overrides={"whitespace_flexible": False}
        ),
    },
}


class ReadyLogits:
    """A backend that only copies; the logits depend on slot and position."""

    def __init__(self, num_slots: int) -> None:
        self.info = ModelInfo(
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            num_slots=num_slots,
            widths=(1, 2, 4, 8, 16),
            eos_token_ids=(0,),
            dtype="float32",
        )
        self.seconds = 0.0
        self._logits = _realistic_logits()

    def warmup(self) -> None:
        pass

    def forward(self, rows: tuple[ForwardRow, ...]) -> torch.Tensor:
        started = time.perf_counter()
        wanted = [
            (17 * row.slot_id + position) % NUM_LOGITS
            for row in rows
            for position in range(row.end_position - row.num_logits, row.end_position)
        ]
        logits = self._logits[wanted]
        self.seconds += time.perf_counter() - started
        return logits

    def copy_prefix(self, source_slot: int, target_slot: int, num_tokens: int) -> None:
        pass

    def close(self) -> None:
        pass


def _realistic_logits() -> torch.Tensor:  # [NUM_LOGITS, VOCAB_SIZE]
    """The spread and the head of SmolLM2-135M's, rounded to bfloat16 as they are."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.1, size=(NUM_LOGITS, VOCAB_SIZE)).astype(np.float32)
    logits[np.arange(NUM_LOGITS), logits.argmax(axis=1)] += 4
    return torch.from_numpy(logits).bfloat16().float()


class KnownPaths:
    """Proposes what the requests emitted when they ran before."""

    kind = "suffix"

    def __init__(self, paths: dict[str, list[int]]) -> None:
        self._paths = paths

    def propose(self, wanted: Sequence[DraftRequest]) -> dict[str, Proposal]:
        return {d.request.request_id: self._proposal(d) for d in wanted if self._paths}

    def finish(self, request: object) -> None:
        pass

    def _proposal(self, wanted: DraftRequest) -> Proposal:
        start = wanted.request.num_output_tokens
        token_ids = self._paths[wanted.request.request_id][start : start + wanted.max_tokens]
        return Proposal(tuple(token_ids), (0.99,) * len(token_ids))


def build(num_rows: int, paths: dict[str, list[int]]) -> tuple[EngineCore, ReadyLogits]:
    backend = ReadyLogits(num_rows)
    drafter = Drafter([KnownPaths(paths)], DraftLengthController(num_speculative_tokens=15))
    slots = SlotTable(num_rows)
    core = EngineCore(
        backend.info,
        scheduler=Scheduler(slots, max_num_batched_tokens=4096, enable_prefix_caching=False),
        slots=slots,
        model_runner=ModelRunner(backend, drafter),
        drafter=drafter,
        grammars=GrammarCompiler(
            partial(
                load_tokenizer,
                resolve_model(None, default_cache_dir()) / "tokenizer.json",
                vocab_size=VOCAB_SIZE,
                eos_token_ids=(0,),
            )
        ),
    )
    return core, backend


def run(
    params: SamplingParams, num_rows: int, width: int, paths: dict[str, list[int]]
) -> tuple[dict[str, list[int]], list[list[float]]]:
    """The texts; and milliseconds of each full step: drafting, encoding, all but the forward."""
    core, backend = build(num_rows, paths)
    for i in range(num_rows):
        core.add_request(
            AddRequest(
                request_id=f"r{i}",
                prompt_token_ids=[1 + (i * 31 + 7 * j) % 5000 for j in range(NUM_PROMPT_TOKENS)],
                sampling_params=msgspec.structs.replace(params, seed=i),
                num_speculative_tokens=width - 1,
            )
        )
    texts: dict[str, list[int]] = {f"r{i}": [] for i in range(num_rows)}
    steps = []
    encoder = msgspec.msgpack.Encoder()
    while core.has_work:
        before, started = backend.seconds, time.perf_counter()
        output = core.step()
        stepped = time.perf_counter()
        encoder.encode(output)
        ended = time.perf_counter()
        host = ended - started - (backend.seconds - before)
        if output.stats.phase == "decode" and output.stats.num_tokens == num_rows * width:
            drafting = output.stats.draft_seconds
            steps.append([drafting * 1e3, (ended - stepped) * 1e3, host * 1e3])
        for item in output.outputs:
            assert item.finish_reason in (None, "length"), item
            texts[item.request_id] += item.new_token_ids
    return texts, steps


def measure(name: str, num_rows: int, width: int, num_steps: int) -> tuple[float, ...]:
    """The least milliseconds of drafting, of encoding, of all but the forward; and their median."""
    params = SamplingParams(max_tokens=num_steps * width + 1, ignore_eos=True, **KINDS[name])
    paths, _ = run(params, num_rows, 1, {})
    texts, steps = run(params, num_rows, width, paths)
    assert texts == paths, "drafts have changed the text"
    columns = list(zip(*steps, strict=True))
    return *map(min, columns), statistics.median(columns[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind")
    parser.add_argument("--profile", action="store_true", help="of 8 rows of 16 positions")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    names = [options.kind] if options.kind else list(KINDS)
    shapes = [(num_rows, width) for num_rows in ROWS for width in WIDTHS]
    print("ms a step outside of the forward, least / median (of which drafting, encoding)")
    print("| rows x positions | " + " | ".join(f"{r} x {w}" for r, w in shapes) + " |")
    print("|---" * (len(shapes) + 1) + "|")
    for name in names:
        cells = []
        for num_rows, width in shapes:
            drafting, encoding, host, median = measure(name, num_rows, width, options.steps)
            cells.append(f"{host:.2f} / {median:.2f} ({drafting:.2f}, {encoding:.2f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if options.profile:
        for name in names:
            with cProfile.Profile() as profiler:
                measure(name, 8, 16, options.steps)
            print(name)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(16)


if __name__ == "__main__":
    main()
