"""Every flag and environment variable: ranges, defaults, and vLLM's names where it has one."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from app.http.api_key_file import check_api_key, read_api_keys
from app.model_source import DEFAULT_MODEL, default_cache_dir
from engine.config import (
    DType,
    EngineConfig,
    KernelKind,
    Quantization,
    SpeculativeConfig,
    SpeculativeMethod,
)

MAX_SPECULATIVE_TOKENS = 31


class SpeculativeSettings(BaseModel):
    """The keys of --speculative-config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["suffix", "ngram", "draft_model", "synthetic", "none"] | None = None
    model: str | None = None
    num_speculative_tokens: int = Field(
        default=MAX_SPECULATIVE_TOKENS, ge=1, le=MAX_SPECULATIVE_TOKENS
    )
    prompt_lookup_min: int = Field(default=1, ge=1)
    prompt_lookup_max: int = Field(default=16, ge=1)
    acceptance_rates: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(), max_length=MAX_SPECULATIVE_TOKENS
    )

    @model_validator(mode="after")
    def check_combination(self) -> "SpeculativeSettings":
        if self.method == "draft_model" and self.model is None:
            raise ValueError('method "draft_model" needs "model"')
        if self.method in ("suffix", "ngram", "synthetic", "none") and self.model is not None:
            raise ValueError(f'"model" has no use with method "{self.method}"')
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not be above prompt_lookup_max")
        if bool(self.acceptance_rates) != (self.method == "synthetic"):
            raise ValueError('"acceptance_rates" and the method "synthetic" need each other')
        if sorted(self.acceptance_rates, reverse=True) != list(self.acceptance_rates):
            raise ValueError("acceptance_rates must not rise: a token counts after those before")
        return self

    @property
    def engine_method(self) -> SpeculativeMethod:
        if self.method is None:
            return "suffix" if self.model is None else "suffix_and_draft_model"
        return "suffix" if self.method == "ngram" else self.method

    def engine_config(self, draft_model_path: Path | None) -> SpeculativeConfig:
        return SpeculativeConfig(
            method=self.engine_method,
            num_speculative_tokens=self.num_speculative_tokens,
            draft_model_path=str(draft_model_path) if draft_model_path else None,
            prompt_lookup_min=self.prompt_lookup_min,
            prompt_lookup_max=self.prompt_lookup_max,
            acceptance_rates=self.acceptance_rates,
        )


def _split_commas(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


def _check_key(key: SecretStr) -> SecretStr:
    check_api_key(key.get_secret_value())
    return key


def _check_key_file(path: Path | None) -> Path | None:
    if path is not None:
        read_api_keys(path)
    return path


Item = TypeVar("Item")
ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]
CommaSeparated = Annotated[list[Item], NoDecode, BeforeValidator(_split_commas)]


class Settings(BaseSettings):
    """Flags are these names in kebab case, environment variables are TANDEM_ and the name."""

    model_config = SettingsConfigDict(
        env_prefix="TANDEM_",
        cli_prog_name="tandem serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        extra="forbid",
        frozen=True,
    )

    model: Annotated[
        str | None, Field(description=f"local folder or Hugging Face id [{DEFAULT_MODEL}]")
    ] = None
    served_model_name: Annotated[
        str | None, Field(description="the name that clients ask for [the model's]")
    ] = None
    chat_template: Annotated[
        Path | None, Field(description="file with a Jinja chat template [the model's]")
    ] = None
    host: Annotated[str, Field(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="0 takes any free port")] = 8000
    max_num_seqs: Annotated[
        int, Field(ge=1, le=1024, description="requests that are generated at the same time")
    ] = 8
    max_model_len: Annotated[
        int | None, Field(ge=2, description="context length, prompt and output [the model's]")
    ] = None
    max_num_batched_tokens: Annotated[
        int, Field(ge=1, description="prompt tokens that one step reads")
    ] = 128
    dtype: Annotated[DType, Field(description="auto takes bfloat16 where it is fast")] = "auto"
    quantization: Annotated[
        Quantization | None, Field(description="int8 halves the weights again: faster, less exact")
    ] = None
    kernels: Annotated[
        KernelKind,
        Field(description="auto takes Tandem's own kernels where they were built, torch none"),
    ] = "auto"
    device: Annotated[Literal["cpu"], Field(description="where the model runs")] = "cpu"
    speculative_config: Annotated[
        SpeculativeSettings,
        Field(
            description='JSON, e.g. {"method": "none"} or {"model": "draft/model"}; '
            '{"method": "synthetic", "acceptance_rates": [0.8, 0.6]} is for capacity tests only'
        ),
    ] = Field(default_factory=SpeculativeSettings)
    enable_prefix_caching: Annotated[
        bool, Field(description="start behind a prompt's beginning that is still in a slot")
    ] = True
    num_threads: Annotated[
        int | None, Field(ge=1, description="processor threads of the engine [all cores]")
    ] = None
    cache_dir: Annotated[Path, Field(description="where the default model is kept")] = Field(
        default_factory=default_cache_dir
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_logprobs: Annotated[
        int, Field(ge=0, le=1000, description="most logprobs that a request may ask for")
    ] = 20
    max_num_stop_strings: Annotated[
        int, Field(ge=1, description="most stop strings that a request may have")
    ] = 16
    api_key: Annotated[
        CommaSeparated[ApiKey],
        Field(
            description="clients must send one of these; several are separated by commas, or by "
            "giving the flag again. Other users of the machine can see it: prefer a file"
        ),
    ] = []
    api_key_file: Annotated[
        Path | None,
        AfterValidator(_check_key_file),
        Field(description="more API keys, one on each line; # begins a comment"),
    ] = None
    api_key_for_metrics: Annotated[
        bool, Field(description="whether /metrics needs an API key as well")
    ] = False
    cors_allow_origins: Annotated[
        CommaSeparated[str], Field(description="origins whose pages may call this server; may be *")
    ] = []
    max_body_bytes: Annotated[
        int, Field(ge=1024, description="largest request body; a larger one gets a 413")
    ] = 16 * 2**20
    read_timeout: Annotated[
        float, Field(gt=0, description="seconds that a client may take to send its request")
    ] = 60.0
    write_timeout: Annotated[
        float, Field(gt=0, description="seconds that a client may leave its answer unread")
    ] = 30.0
    max_num_queued_reqs: Annotated[
        int, Field(ge=1, description="requests that may wait; the next one gets a 429")
    ] = 1024
    max_num_queued_tokens: Annotated[
        int, Field(ge=1, description="prompt tokens that may wait; the next request gets a 429")
    ] = 1_000_000
    max_queue_seconds: Annotated[
        float, Field(gt=0, description="a request that waited for so long gets a 503")
    ] = 300.0
    engine_hang_seconds: Annotated[
        float, Field(gt=0, description="an engine with work and without a step is restarted")
    ] = 120.0
    max_engine_crashes: Annotated[
        int, Field(ge=0, description="crashes in ten minutes after which the server gives up")
    ] = 5
    log_format: Annotated[
        Literal["text", "json"], Field(description="json is one object per line")
    ] = "text"
    log_prompts: Annotated[
        bool, Field(description="write prompts and outputs to the log; they are private")
    ] = False
    sse_keep_alive_seconds: Annotated[
        float, Field(gt=0, description="a comment is sent when a stream was silent for this long")
    ] = 15.0
    shutdown_timeout: Annotated[
        int, Field(ge=0, description="seconds that requests in flight may take at shutdown")
    ] = 30

    @property
    def model_name(self) -> str:
        """The name in responses, /v1/models and metrics."""
        return self.served_model_name or self.model or DEFAULT_MODEL

    @property
    def api_keys(self) -> list[str]:
        """All keys that are known; none lets everybody in."""
        keys = [key.get_secret_value() for key in self.api_key]
        return keys if self.api_key_file is None else keys + read_api_keys(self.api_key_file)

    @property
    def num_speculative_tokens(self) -> int:
        """The most draft tokens in one step."""
        spec = self.speculative_config
        return 0 if spec.engine_method == "none" else spec.num_speculative_tokens

    def engine_config(self, model_path: Path, draft_model_path: Path | None) -> EngineConfig:
        return EngineConfig(
            model_path=str(model_path),
            device=self.device,
            dtype=self.dtype,
            quantization=self.quantization,
            kernels=self.kernels,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            num_threads=self.num_threads,
            speculative=self.speculative_config.engine_config(draft_model_path),
        )


class WrongSettingsError(Exception):
    """One readable line per problem."""


def parse_settings(arguments: list[str]) -> Settings:
    """Settings from flags, then from the environment."""
    try:
        return Settings(_cli_parse_args=arguments)  # type: ignore[call-arg]
    except ValidationError as error:
        lines = [_problem(dict(problem)) for problem in error.errors()]
        raise WrongSettingsError("\n".join(lines)) from error
    except SettingsError as error:
        message = str(error).removeprefix("error parsing CLI: ")
        if "speculative_config" in message:
            message = "--speculative-config (TANDEM_SPECULATIVE_CONFIG): this is not valid JSON"
        raise WrongSettingsError(message) from error


def _problem(problem: dict[str, Any]) -> str:
    field, *keys = (str(part) for part in problem["loc"])
    name = f"--{field.replace('_', '-')} (TANDEM_{field.upper()})"
    if problem["type"] == "extra_forbidden":
        return f'{name}: there is no key "{".".join(keys)}"'
    key = f'"{".".join(keys)}": ' if keys else ""
    return f"{name}: {key}{problem['msg'].removeprefix('Value error, ')}"
