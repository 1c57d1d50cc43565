"""Step times of the CPU engine over rows and widths, beside the memory floor of the same run.

The floor is the bytes of the weights divided by the bandwidth that a float32 matrix-vector product
over 1 GiB reaches. `make bench-step` prints it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from app.model_source import default_cache_dir, resolve_model
from engine.backends.base import ForwardRow
from engine.backends.cpu import CpuBackend

NUM_BYTES_READ = 2**30
ROWS = (1, 2, 4, 8)
WIDTHS = (1, 2, 4, 8, 16)
# The operations of a step by what they are for; the rest is Python and small operations.
PARTS = {
    "linear layers": ("linear", "qlinear", "addmm", "mm"),
    "attention": ("attention", "softmax"),
    "norms": ("rms_norm", "layer_norm"),
    "rotary": ("roll", "mul", "add"),
    "cache writes": ("index_copy", "index_put"),
}


def best_seconds(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The least and the median of the times."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds), statistics.median(seconds)


def read_bandwidth() -> float:
    """Bytes per second."""
    matrix = torch.ones(2**14, NUM_BYTES_READ // 4 // 2**14)
    vector = torch.ones(matrix.shape[1])
    return NUM_BYTES_READ / best_seconds(lambda: matrix @ vector, 12)[0]


def weight_bytes(folder: Path, num_bytes: int) -> int:
    """All weights, with so many bytes each; the files have two."""
    num_weights = sum(path.stat().st_size for path in folder.glob("*.safetensors")) // 2
    return num_weights * num_bytes


def step(num_rows: int, width: int, context: int) -> tuple[ForwardRow, ...]:
    token_ids = tuple(1000 + i for i in range(width))
    return tuple(ForwardRow(slot, context, token_ids, width) for slot in range(num_rows))


def parts_of(backend: CpuBackend, rows: tuple[ForwardRow, ...], repeats: int) -> dict[str, float]:
    """Milliseconds of a step by part."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            backend.forward(rows)
    found: dict[str, float] = dict.fromkeys(PARTS, 0.0) | {"other operations": 0.0}
    for event in profiler.key_averages():
        names = (part for part, words in PARTS.items() if any(w in event.key for w in words))
        found[next(names, "other operations")] += event.self_cpu_time_total / repeats / 1000
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--context", type=int, default=256, help="tokens in each slot before")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--kernels", default="auto", choices=["auto", "torch"])
    options = parser.parse_args()
    bandwidth = read_bandwidth()
    folder: Path = resolve_model(options.model, default_cache_dir())
    backend = CpuBackend(
        folder,
        dtype=options.dtype,
        max_model_len=4096,
        quantization=options.quantization,
        kernels=options.kernels,
    )
    backend.warmup()
    kind = options.quantization or backend.info.dtype
    floor = weight_bytes(folder, {"int8": 1, "bfloat16": 2, "float32": 4}[kind]) / bandwidth
    print(f"{bandwidth / 1e9:.1f} GB/s; floor {floor * 1e3:.1f} ms a step ({kind})")
    print("ms a step, least / median, and ÷ floor; rows down, tokens per row across")
    print("| rows | " + " | ".join(map(str, WIDTHS)) + " |")
    print("|---" * (len(WIDTHS) + 1) + "|")
    for num_rows in ROWS:
        cells = []
        for width in WIDTHS:
            rows = step(num_rows, width, options.context)
            least, median = best_seconds(lambda rows=rows: backend.forward(rows), options.repeats)
            cells.append(f"{least * 1e3:.1f} / {median * 1e3:.1f} ({least / floor:.2f})")
        print(f"| {num_rows} | " + " | ".join(cells) + " |")
    for num_rows, width in ((1, 1), (1, 16), (8, 2)):
        found = parts_of(backend, step(num_rows, width, options.context), options.repeats)
        print(f"{num_rows} x {width}: " + ", ".join(f"{k} {v:.1f} ms" for k, v in found.items()))


if __name__ == "__main__":
    main()
