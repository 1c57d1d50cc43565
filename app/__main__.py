"""The command line: `tandem serve | fetch | bench`. Errors are one readable line per problem."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from app import __version__
from app.bench.bench_error import BenchError
from app.errors import EngineFailedError
from app.log_format import configure_logging
from app.model_source import DEFAULT_MODEL, ModelSourceError, default_cache_dir, resolve_model
from app.server import bind_socket, serve
from app.settings import Settings, WrongSettingsError, parse_settings
from app.text.chat_template import ChatTemplate
from app.text.tokenizer import Tokenizer
from app.text.tokenizer_config import TokenizerConfig, read_template
from engine.messages import EngineReady

logger = logging.getLogger(__name__)

USAGE_EXIT_CODE = 2


class CommandError(Exception):
    """Ends the command with exit code 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["serve"]:
            return _serve(parse_settings(arguments[1:]))
        return _other_command(arguments)
    except WrongSettingsError as error:
        for line in str(error).splitlines():
            print(f"tandem serve: {line}", file=sys.stderr)
        print("`tandem serve --help` lists the flags.", file=sys.stderr)
        return USAGE_EXIT_CODE
    except (CommandError, ModelSourceError, BenchError) as error:
        for line in str(error).splitlines():
            print(f"tandem: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _other_command(arguments: list[str]) -> int:
    # Here, since it would hold up `tandem serve`.
    from app.bench.command import add_bench_flags, run_bench

    parser = argparse.ArgumentParser(prog="tandem", description="Exact speculative decoding.")
    parser.add_argument("--version", action="version", version=f"tandem {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="serve | fetch | bench")
    commands.add_parser("serve", help="serve a model over HTTP; `tandem serve --help` for more")
    fetch = commands.add_parser("fetch", help="download a model and print its folder")
    fetch.add_argument(
        "--model",
        default=os.environ.get("TANDEM_MODEL"),
        help=f"Hugging Face id or local folder [{DEFAULT_MODEL}]",
    )
    fetch.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    bench = commands.add_parser("bench", help="compare speculation off and on, by prompt")
    add_bench_flags(bench)
    options = parser.parse_args(arguments)
    if options.command == "bench":
        for text in run_bench(options, bench.error):
            print(text, end="\n\n", flush=True)
    else:
        print(resolve_model(options.model, options.cache_dir))
    return 0


def _serve(settings: Settings) -> int:
    configure_logging(settings.log_level, settings.log_format)
    try:
        listener = bind_socket(settings.host, settings.port)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "choose another with --port or --host"
        ) from error
    with listener:
        model_path = resolve_model(settings.model, settings.cache_dir)
        tokenizer_config = _tokenizer_config(settings, model_path)
        draft_model_path = _draft_model(settings, model_path)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        try:
            uvloop.run(
                serve(
                    settings,
                    settings.engine_config(model_path, draft_model_path),
                    tokenizer_config,
                    listener,
                    lambda model: _announce(settings.model_name, url, model),
                )
            )
        except EngineFailedError as error:
            raise CommandError(f"the engine stopped: {error}") from error
    return 0


def _tokenizer_config(settings: Settings, folder: Path) -> TokenizerConfig:
    """The model's, with the template that was asked for; a broken one of the model's is kept."""
    config = TokenizerConfig.from_folder(folder)
    if settings.chat_template is not None:
        config = replace(config, chat_template=read_template(settings.chat_template))
    problem = ChatTemplate(config.chat_template, config.special_tokens).problem
    if problem is not None and settings.chat_template is not None:
        raise CommandError(f"--chat-template {settings.chat_template}: {problem}")
    if problem is not None:
        logger.warning("%s", problem)
    return config


def _draft_model(settings: Settings, model_path: Path) -> Path | None:
    """The folder of the draft model, which must mean the same by every token id."""
    draft_model = settings.speculative_config.model
    if draft_model is None:
        return None
    path = resolve_model(draft_model, settings.cache_dir)
    tokenizer = Tokenizer.from_folder(model_path)
    draft_tokenizer = Tokenizer.from_folder(path)
    if not tokenizer.same_vocabulary(draft_tokenizer):
        raise CommandError(
            f"the draft model {draft_model} ({draft_tokenizer.vocab_size} tokens) has another "
            f"tokenizer than {settings.model_name} ({tokenizer.vocab_size} tokens): "
            "choose a draft model of the same family"
        )
    return path


def _announce(model_name: str, url: str, model: EngineReady) -> None:
    body = json.dumps({"model": model_name, "prompt": "The capital of France is"})
    print(
        f"Tandem serves {model_name} at {url} ({model.device}, {model.dtype}, "
        f"speculation: {model.speculative_method}). Try:\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
