"""Reports of crashes by bad input, as checks of a real server: refused, and nothing broken."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import openai
import pytest

from tests.e2e.conftest import START_SECONDS, Server
from tests.e2e.streamed_answer import StreamedAnswer

pytestmark = pytest.mark.usefixtures("unharmed")

VOCAB_SIZE = 49152


def refused(response: httpx.Response, param: str | None = None) -> dict:
    """The error of a 400, whose body is OpenAI's."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["code"], str)
    assert len(response.content) < 2000
    if param is not None:
        assert error["param"] == param
    return error


def post_raw(server: Server, body: bytes | str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    url = f"{server.url}/v1/completions"
    return httpx.post(url, content=body, headers=headers, timeout=START_SECONDS)


def test_an_empty_prompt_is_refused(server):
    """vllm#7283, vllm#7632 (1)."""
    for prompt in ("", [""], [], [[]], ["a", ""], [[1], []]):
        refused(server.post(prompt), "prompt")


def test_wrong_token_ids_are_refused_and_change_no_later_answer(server):
    """llama.cpp#12178 (2), llama.cpp#10074 (4)."""
    reference = server.complete("Hello", max_tokens=4)["choices"]
    for token_id in (-1, VOCAB_SIZE, 2**31, 2**63 - 1, 2**64, -(2**70)):
        for prompt in ([token_id], [1, token_id], [[1], [token_id]]):
            refused(server.post(prompt), "prompt")
        assert server.complete("Hello", max_tokens=4)["choices"] == reference


def test_a_prompt_of_another_kind_is_refused(server):
    """vllm#7632 (1): the same fault in other forms."""
    for prompt in ([True], [1.5], [1, "a"], {"a": 1}, 7, [["a"]], [None], [[1.5]], [[True]]):
        refused(server.post(prompt), "prompt")


def test_a_bias_for_no_token_is_refused(server):
    """vllm#16529 (5)."""
    for token_id in ("99999999", "-1", "abc", "1e3", " 5", "05", "1.0", ""):
        refused(server.post("Hello", logit_bias={token_id: 1}), "logit_bias")
    for bias in (101, -101, "1", True, [1]):
        refused(server.post("Hello", logit_bias={"5": bias}), "logit_bias")
    refused(server.post("Hello", logit_bias=[]), "logit_bias")


def test_a_token_id_outside_of_the_vocabulary_is_refused_in_every_field(server):
    """vllm#16529 (5): the same fault in other fields."""
    wrong = {
        "logit_bias": {str(VOCAB_SIZE): 1},
        "allowed_token_ids": [VOCAB_SIZE],
        "stop_token_ids": [-1],
    }
    for name, value in wrong.items():
        error = refused(server.post("Hello", **{name: value}), name)
        assert error["code"] == "invalid_token_id"


def test_a_number_that_is_none_is_refused_with_valid_json(server):
    """sglang#28153, Rapid-MLX#740 (7)."""
    for name in ("temperature", "min_p", "top_p"):
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-0.1", "2.1"):
            refused(post_raw(server, f'{{"prompt": "a", "max_tokens": 1, "{name}": {number}}}'))


def test_a_tiny_temperature_is_greedy(server):
    """vllm#2937, vllm#1623 (8)."""
    greedy = server.complete("The sea", max_tokens=8)["choices"]
    for temperature in (1e-4, 1e-8, 5e-324):
        answer = server.complete("The sea", max_tokens=8, temperature=temperature)
        assert answer["choices"] == greedy


def test_a_wrong_number_of_choices_is_refused(server):
    """vllm#6646 (10)."""
    for n in (129, 512, 0, -1, 10**9, 10**30, 1.5, "2", True):
        refused(server.post("Hello", n=n, temperature=1), "n")


def test_too_many_logprobs_are_refused(server):
    """vllm#16836, local-inference-lab/vllm#264 (11): the message has the most there may be."""
    for name in ("logprobs", "prompt_logprobs"):
        for value in (21, 10**6, -1, -2):
            error = refused(server.post("Hello " * 500, **{name: value}), name)
            assert value < 0 or "20" in error["message"]


def test_a_wrong_max_tokens_is_refused(server):
    """Report 13: negative, zero, or no integer."""
    for value in (-1, 0, 1.5, "8", True):
        refused(server.post("Hello", max_tokens=value), "max_tokens")


def test_a_huge_max_tokens_is_what_the_context_has_room_for(server):
    """Report 13: no overflow."""
    for max_tokens in (10**12, 2**63, 2**64, 10**30):
        answer = server.complete("Count: 1, 2,", max_tokens=max_tokens, stop=[" 9"])
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_deep_nesting_is_refused(server):
    """flop-labs/technocore-chat#130 (16)."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth in (1000, 20000):
            value = opening * depth + "1" + closing * depth
            refused(post_raw(server, f'{{"prompt": {value}}}'))
            refused(post_raw(server, f'{{"prompt": "a", "unknown": {value}}}'))


def test_a_body_without_an_end_is_refused_before_it_is_read(server):
    """BrightbeamAI/chap#59, Kludex/starlette#3431 (17): with its length, and in chunks."""
    url = f"{server.url}/v1/completions"
    headers = {"Content-Type": "application/json"}

    def chunks():
        for _ in range(100):
            yield b" " * 2**20

    for extra in ({"Content-Length": str(100 * 2**20)}, {}):
        response = post_until_answered(url, chunks(), headers | extra)
        assert response.startswith(b"HTTP/1.1 413 "), response[:200]
        assert b'"request_too_large"' in response


def post_until_answered(url: str, chunks, headers: dict[str, str]) -> bytes:
    """Send on until the server answers or does not take more; what it said, as bytes."""
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    chunked = "Content-Length" not in headers
    headers |= {"Host": host, "Connection": "close"}
    headers |= {"Transfer-Encoding": "chunked"} if chunked else {}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((host, int(port)), timeout=START_SECONDS) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode())
        try:
            for chunk in chunks:
                framed = b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk
                connection.sendall(framed)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_to_the_end(connection)


def read_to_the_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(2**16):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_a_garbled_content_length_is_refused(server):
    """Kludex/starlette#3431 (17)."""
    for length in ("abc", "-1", "1e3", "5, 6", "0x10", "9" * 30):
        headers = {"Content-Type": "application/json", "Content-Length": length}
        response = post_until_answered(f"{server.url}/v1/completions", [b"{}"], headers)
        assert response[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413"), (length, response[:200])


def test_half_a_surrogate_pair_is_refused(server):
    """JustVugg/colibri#1589, tiktoken#82 (19)."""
    half = '"x \\ud83d"'
    fields = [f'"prompt": {half}', f'"prompt": [{half}]', '"prompt": "\\ude00\\ud83d"']
    others = [f'"{name}": {half}' for name in ("stop", "user", "suffix", "model", "cache_salt")]
    others += [f'"stop": [{half}]', f"{half}: 1", f'"logit_bias": {{{half}: 1}}']
    fields += [f'"prompt": "a", {field}' for field in others]
    for field in fields:
        for stream in ("false", "true"):
            refused(post_raw(server, f'{{{field}, "max_tokens": 1, "stream": {stream}}}'))


def test_a_whole_surrogate_pair_is_its_character(server):
    """JustVugg/colibri#1589 (19)."""
    body = '{"prompt": "x \\ud83d\\ude00", "max_tokens": 0, "echo": true}'
    assert post_raw(server, body).json()["choices"][0]["text"] == "x 😀"


def test_a_nul_does_not_end_the_prompt(server):
    """llama.cpp#25543, TensorRT-LLM#7533 (20)."""
    answer = server.complete("A\u0000B", echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "A\u0000B"
    tokens = httpx.post(f"{server.url}/tokenize", json={"prompt": "A\u0000B"}).json()["tokens"]
    assert len(tokens) == answer["usage"]["prompt_tokens"] > 2


def test_a_format_without_a_good_schema_is_refused(server):
    """vllm#35438 (22)."""
    formats = [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no_type"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": 7}},
        {"type": "other"},
        {},
        "json_object",
    ]
    for response_format in formats:
        error = refused(server.post("Hello", response_format=response_format))
        assert error["param"].split(".")[0] == "response_format"


def test_a_refusal_has_a_code_and_a_param_in_the_client(server):
    """vllm#12886 (23)."""
    with server.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="SmolLM2-135M-Instruct", prompt="Hi", temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.code == "invalid_value"


async def test_two_requests_of_the_same_id_both_succeed(server):
    """vllm#15041, vllm#10583 (25): by header and in the body."""
    body = {"prompt": "Count: 1, 2,", "max_tokens": 12, "temperature": 0, "request_id": "twin"}
    async with httpx.AsyncClient(base_url=server.url, timeout=START_SECONDS) as client:
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body) for _ in range(2)),
            *(
                client.post(
                    "/v1/completions", json=body | {"stream": True}, headers={"X-Request-Id": "t"}
                )
                for _ in range(2)
            ),
        )
    assert [answer.status_code for answer in answers] == [200] * 4
    first, second, *streams = answers
    assert first.json()["choices"] == second.json()["choices"]
    assert all(stream.text.endswith("data: [DONE]\n\n") for stream in streams)


def test_a_strange_request_id_is_not_repeated(server):
    """vllm PR#10968 (26): replaced, or refused because of its length."""
    for request_id in (b"a" * 100_000, b"a\xff\xfeb", b"a b;c", b'"x"<y>'):
        headers = {"X-Request-Id": request_id}
        try:
            response = httpx.get(f"{server.url}/health/live", headers=headers)
        except httpx.RemoteProtocolError:
            continue
        assert response.status_code in (200, 400, 431)
        told = response.headers.get("X-Request-Id", "")
        assert len(told) <= 128
        assert told.encode("latin-1") != request_id


def test_a_good_request_id_comes_back(server):
    """vllm PR#10968 (26)."""
    response = httpx.get(f"{server.url}/health/live", headers={"X-Request-Id": "abc-1"})
    assert response.headers["X-Request-Id"] == "abc-1"


def test_every_prompt_of_a_list_is_answered_by_all_its_choices(server):
    """TGI#1702, openai-python#90 (28)."""
    options = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 6}
    alone = [
        c["text"] for prompt in ("a", "b") for c in server.complete(prompt, **options)["choices"]
    ]
    together = server.complete(["a", "b"], **options)["choices"]
    assert [choice["index"] for choice in together] == [0, 1, 2, 3]
    assert [choice["text"] for choice in together] == alone


def test_one_prompt_that_is_too_long_refuses_all_of_them(server):
    """tt#3531 (29): nothing was started, nothing is counted."""
    before = server.metrics()
    error = refused(server.post([[1], [1] * 9000]), "prompt")
    assert error["code"] == "context_length_exceeded"
    after = server.metrics()
    for name in after:
        if name.startswith(("tandem_requests_total", "tandem_prompt_tokens_total")):
            assert after[name] == before[name]


SCHEMA_BOMBS = {
    "repeats in repeats": {"structured_outputs": {"regex": "((((a{0,1000}){0,1000}){0,1000}b))"}},
    "a huge repeat": {"structured_outputs": {"regex": "(a|b){0,100000}c(d|e){0,100000}"}},
    "nested arrays": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "bomb",
                "schema": json.loads(
                    '{"type": "array", "maxItems": 100000, "items": ' * 6 + "{}" + "}" * 6
                ),
            },
        }
    },
}


@pytest.mark.parametrize("body", SCHEMA_BOMBS.values(), ids=SCHEMA_BOMBS.keys())
async def test_a_schema_bomb_holds_nobody_up(server, body):
    """vLLM's schema bombs (31): an answer or a refusal, while a stream goes on."""
    expected = await asyncio.to_thread(StreamedAnswer.read, server, "The sea", max_tokens=24)
    stream = asyncio.create_task(
        asyncio.to_thread(StreamedAnswer.read, server, "The sea", max_tokens=24)
    )
    response = await asyncio.to_thread(server.post, "a", **body, max_tokens=4)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        refused(response)
    assert (await stream).choices == expected.choices
