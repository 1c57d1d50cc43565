"""The answers of /tokenize, /detokenize, /tokenizer_info and /load."""

from typing_extensions import TypedDict


class TokenizeAnswer(TypedDict):
    """`token_strs` are as in logprobs: text, or `bytes:\\xe4` for a part of a character."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """What a client needs to do the tokenizer's work itself; null is what the model has not."""

    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    vocab_size: int
    max_model_len: int


class Load(TypedDict):
    """`server_load` is the sum of the others."""

    server_load: int
    num_requests_running: int
    num_requests_waiting: int
