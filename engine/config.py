"""What the engine is told at start-up: plain data, already validated and resolved by the front end.

Paths are local folders here; hub ids, flags and environment variables are not known to the engine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DType = Literal["auto", "bfloat16", "float32"]
KernelKind = Literal["auto", "torch"]
Quantization = Literal["int8"]
SpeculativeMethod = Literal["none", "suffix", "draft_model", "suffix_and_draft_model", "synthetic"]


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How drafts are made. `num_speculative_tokens` is the most that one step may propose.

    `acceptance_rates` are for the method "synthetic" alone: capacity tests.
    """

    method: SpeculativeMethod = "suffix"
    num_speculative_tokens: int = 31
    draft_model_path: str | None = None
    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 16
    max_cached_tokens: int = 200_000
    acceptance_rates: tuple[float, ...] = ()


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How complex a grammar may be, by llguidance's own measures of work and memory.

    The front end refuses what is above them, so the engine must compile with the same ones.
    """

    max_items_in_row: int = 2_000
    initial_lexer_fuel: int = 300_000
    step_lexer_fuel: int = 50_000
    step_max_items: int = 10_000
    max_lexer_states: int = 20_000
    max_grammar_size: int = 100_000


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the engine process needs in order to start."""

    model_path: str
    device: Literal["cpu"] = "cpu"
    dtype: DType = "auto"
    quantization: Quantization | None = None
    kernels: KernelKind = "auto"
    max_num_seqs: int = 8
    max_model_len: int | None = None
    max_num_batched_tokens: int = 128
    max_consecutive_prefills: int = 1
    max_consecutive_decodes: int = 1
    enable_prefix_caching: bool = True
    num_threads: int | None = None
    speculative: SpeculativeConfig = SpeculativeConfig()
    grammar_limits: GrammarLimits = GrammarLimits()
