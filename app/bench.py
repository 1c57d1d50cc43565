"""`tandem bench`: tokens per second without and with speculation, prompt by prompt.

It starts a server of its own, since one that has answered a prompt before drafts from that answer.
Each prompt runs with speculation first, for the same reason, and without the prefix cache, so that
both sides read the prompt. Both answers must be the same bytes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

WARM_UP: dict[str, Any] = {"kind": "warm-up", "prompt": "The quick brown fox", "max_tokens": 64}


class BenchError(Exception):
    """The benchmark cannot run, or found an answer that speculation changed."""


@dataclass(slots=True)
class Side:
    """The sums of one kind of prompt with speculation off or on."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(slots=True)
class Comparison:
    off: Side = field(default_factory=Side)
    on: Side = field(default_factory=Side)

    def add(self, other: Comparison) -> None:
        for mine, others in ((self.off, other.off), (self.on, other.on)):
            mine.num_tokens += others.num_tokens
            mine.seconds += others.seconds
            mine.num_draft_tokens += others.num_draft_tokens
            mine.num_accepted_tokens += others.num_accepted_tokens


def run_bench(prompts_file: Path, serve_arguments: Sequence[str]) -> str:
    """The table. `serve_arguments` are flags for the server that is started."""
    prompts = _read_prompts(prompts_file)
    kinds: dict[str, Comparison] = defaultdict(Comparison)
    with _server(serve_arguments) as url:
        _compare(url, WARM_UP)
        for prompt in tqdm(prompts, desc="prompts", unit="prompt"):
            kinds[prompt["kind"]].add(_compare(url, prompt))
    total = Comparison()
    for comparison in kinds.values():
        total.add(comparison)
    return _table({**kinds, "all": total})


def _read_prompts(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise BenchError(f"cannot read the prompts: {error}") from error


@contextmanager
def _server(arguments: Sequence[str]) -> Iterator[str]:
    flags = ["--port", "0", "--no-enable-prefix-caching", "--log-level", "warning"]
    command = [sys.executable, "-m", "app", "serve", *flags, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = (re.search(r"http://\S+:\d+", line) for line in process.stdout)
        address = next(filter(None, found), None)
        if address is None:
            raise BenchError(f"the server ended with code {process.wait()}")
        yield address.group()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _compare(url: str, prompt: dict[str, Any]) -> Comparison:
    comparison = Comparison()
    with_drafts = _complete(url, prompt, comparison.on, speculative=True)
    without = _complete(url, prompt, comparison.off, speculative=False)
    if with_drafts != without:
        raise BenchError(f"speculation changed the answer to {prompt['prompt']!r}")
    return comparison


def _complete(url: str, prompt: dict[str, Any], side: Side, *, speculative: bool) -> str:
    body = {
        "prompt": prompt["prompt"],
        "max_tokens": prompt["max_tokens"],
        "temperature": 0,
        "speculative": speculative,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    side.seconds += time.perf_counter() - started
    side.num_tokens += answer["usage"]["completion_tokens"]
    stats = answer["metrics"]["speculative_decoding"]
    side.num_draft_tokens += stats["num_draft_tokens"]
    side.num_accepted_tokens += stats["num_accepted_draft_tokens"]
    text: str = answer["choices"][0]["text"]
    return text


def _table(comparisons: dict[str, Comparison]) -> str:
    lines = ["| prompts | tokens/s off | tokens/s on | ratio | accepted |", "|---|---|---|---|---|"]
    for kind, comparison in comparisons.items():
        off, on = comparison.off.tokens_per_second, comparison.on.tokens_per_second
        accepted = f"{comparison.on.acceptance_rate:.0%}"
        lines.append(f"| {kind} | {off:.1f} | {on:.1f} | {on / off:.2f} | {accepted} |")
    return "\n".join(lines)
