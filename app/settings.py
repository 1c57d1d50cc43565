"""Every flag and environment variable: ranges, defaults, and vLLM's names where it has one."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from app.model_source import DEFAULT_MODEL, default_cache_dir
from engine.config import DType, EngineConfig, SpeculativeConfig, SpeculativeMethod


class SpeculativeSettings(BaseModel):
    """The keys of --speculative-config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["suffix", "ngram", "draft_model", "none"] | None = None
    model: str | None = None
    num_speculative_tokens: int = Field(default=15, ge=1, le=15)
    prompt_lookup_min: int = Field(default=2, ge=1)
    prompt_lookup_max: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def check_combination(self) -> "SpeculativeSettings":
        if self.method == "draft_model" and self.model is None:
            raise ValueError('method "draft_model" needs "model"')
        if self.method in ("suffix", "ngram", "none") and self.model is not None:
            raise ValueError(f'"model" has no use with method "{self.method}"')
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError("prompt_lookup_min must not be above prompt_lookup_max")
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
        )


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
    device: Annotated[Literal["cpu"], Field(description="where the model runs")] = "cpu"
    speculative_config: Annotated[
        SpeculativeSettings,
        Field(description='JSON, e.g. {"method": "none"} or {"model": "draft/model"}'),
    ] = Field(default_factory=SpeculativeSettings)
    enable_prefix_caching: Annotated[
        bool, Field(description="start behind a prompt's beginning that is still in a slot")
    ] = True
    num_threads: Annotated[
        int | None, Field(ge=1, description="processor threads of the engine [all cores]")
    ] = None
    cache_dir: Annotated[Path, Field(description="where fetched models are kept")] = Field(
        default_factory=default_cache_dir
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_logprobs: Annotated[
        int, Field(ge=0, le=1000, description="most logprobs that a request may ask for")
    ] = 20
    max_num_stop_strings: Annotated[
        int, Field(ge=1, description="most stop strings that a request may have")
    ] = 16
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
    def num_speculative_tokens(self) -> int:
        """The most draft tokens in one step."""
        spec = self.speculative_config
        return 0 if spec.engine_method == "none" else spec.num_speculative_tokens

    def engine_config(self, model_path: Path, draft_model_path: Path | None) -> EngineConfig:
        return EngineConfig(
            model_path=str(model_path),
            device=self.device,
            dtype=self.dtype,
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
