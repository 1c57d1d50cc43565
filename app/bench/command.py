"""The flags of `tandem bench`, and the run from them to the report."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from app import __version__
from app.bench.bench_error import BenchError
from app.bench.benchmark import Benchmark
from app.bench.client import Client
from app.bench.own_server import own_server
from app.bench.plot import require_matplotlib, save_plot
from app.bench.prompt import DEFAULT_PROMPTS, Prompt, read_prompts
from app.bench.report import Report
from app.bench.side import Side, default_sides, parse_side

MAX_CONCURRENCY = 1024
MAX_TEMPERATURE = 2.0


def add_bench_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs prompts with speculation off and on, and shows speed and acceptance of both. It "
        "stops with exit code 1 where the two do not write the same bytes."
    )
    add = parser.add_argument
    add("--url", help="a running server, in place of one that is started")
    add(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("TANDEM_API_KEY", "").partition(",")[0],
        help="what the server wants to see [TANDEM_API_KEY]",
    )
    add(
        "--prompts",
        type=Path,
        default=DEFAULT_PROMPTS,
        metavar="FILE",
        help="JSON lines with kind, prompt, max_tokens [a set of Tandem's own]",
    )
    add(
        "--compare",
        type=parse_side,
        action="append",
        default=[],
        metavar="NAME={...}",
        help="one more side beside off and on: request fields that it adds; repeatable",
    )
    add(
        "--concurrency",
        type=_concurrency,
        default=[1],
        metavar="N[,N...]",
        help="how many requests at a time, one after the other [1]",
    )
    add("--repeat", type=_positive, default=1, metavar="N", help="how often each prompt runs [1]")
    add("--max-tokens", type=_positive, metavar="N", help="instead of each prompt's own")
    add("--temperature", type=_temperature, default=0.0, metavar="T", help="0 is greedy [0]")
    add("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    add("--plot", type=Path, metavar="FILE", help="also write FILE.png and FILE.svg (extra 'plot')")
    add("serve_flags", nargs="*", metavar="-- FLAG", help="flags for the server that is started")


def run_bench(options: argparse.Namespace, refuse: Callable[[str], None]) -> Iterator[str]:
    """What there is to say, when it is known. `refuse` ends the command over wrong flags."""
    sides = [*default_sides(), *options.compare]
    if len({side.name for side in sides}) < len(sides):
        refuse("argument --compare: two sides have the same name ('off' and 'on' are there)")
    if options.url is not None and options.serve_flags:
        refuse("flags behind -- are for a server that is started, which --url does not")
    _check_files(options)
    prompts = read_prompts(options.prompts, max_tokens=options.max_tokens)
    report = _measure(options, prompts, sides)
    yield report.text()
    yield from _write_files(report, options)


def _check_files(options: argparse.Namespace) -> None:
    """What can fail does so before the time is spent."""
    if options.plot is not None:
        require_matplotlib()
    for path in filter(None, (options.json, options.plot)):
        if path.is_dir():
            raise BenchError(f"cannot write {path}: it is a folder")
        if not path.parent.is_dir():
            raise BenchError(f"cannot write {path}: there is no folder {path.parent}")


def _measure(
    options: argparse.Namespace, prompts: Sequence[Prompt], sides: Sequence[Side]
) -> Report:
    has_server = options.url is not None
    server = nullcontext(options.url) if has_server else own_server(options.serve_flags)
    with (
        server as url,
        ThreadPoolExecutor(max(options.concurrency)) as executor,
        # It is left first, since the executor waits for its requests.
        Client(url, options.api_key) as client,
    ):
        model = client.model_name()
        benchmark = Benchmark(
            client,
            executor,
            prompts=prompts,
            sides=sides,
            repeat=options.repeat,
            temperature=options.temperature,
        )
        levels = [benchmark.run(concurrency) for concurrency in options.concurrency]
    return Report(model, sides, levels)


def _write_files(report: Report, options: argparse.Namespace) -> Iterator[str]:
    try:
        if options.json is not None:
            run = {key: getattr(options, key) for key in ("temperature", "repeat", "max_tokens")}
            data = {"tandem": __version__, "prompts": options.prompts.name, **run, **report.data()}
            options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            yield f"All numbers are in {options.json}."
        if options.plot is not None:
            files = save_plot(report, options.plot)
            yield f"The picture is in {' and '.join(map(str, files))}."
    except OSError as error:
        name = error.filename or "the files"
        raise BenchError(f"cannot write {name}: {error.strerror}") from error


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return value


def _concurrency(text: str) -> list[int]:
    values = [_positive(part) for part in text.split(",")]
    if max(values) > MAX_CONCURRENCY:
        raise argparse.ArgumentTypeError(f"at most {MAX_CONCURRENCY} requests at a time")
    return values


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_TEMPERATURE:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to {MAX_TEMPERATURE:g}")
    return value
