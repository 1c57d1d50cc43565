"""Requests that are wrong in a random way; a seed makes the same ones again."""

from __future__ import annotations

import json
import random

# Each of these is refused before anything is generated, wherever the mutation leaves it alone.
BODIES: list[tuple[str, dict[str, object]]] = [
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "temperature": 0.5, "unknown": 1}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1, "n": 2, "model": "another"}),
    ("/v1/completions", {"prompt": [1, 2], "logprobs": 1, "stop_token_ids": [99999999]}),
    ("/v1/completions", {"prompt": "Hi", "logit_bias": {"5": 1.5}, "stream": True, "top_p": 0}),
    ("/v1/completions", {"prompt": "Hi", "stop": ["x"], "seed": 1, "stream_options": {"a": 1}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "model": "another"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 1}], "max_tokens": 1}),
    ("/tokenize", {"prompt": "Hi", "unknown": {}}),
    ("/detokenize", {"tokens": [-1, 2**40]}),
]
VALUES = (
    b"NaN", b"-Infinity", b"1e999", b"-1", b"1" * 400, b"0.1e-400", b'"\\ud83d"', b"null", b"true",
    b"[" * 300, b'{"a":' * 300, b"[[[]]]", b"{}", b'""', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"',
    b'"' + b"x" * 3000 + b'"', b"18446744073709551616", b"9223372036854775807", b'"\\', b"'a'",
)  # fmt: skip
HEADERS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 0x10", b"Content-Length: 1, 1",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: \x0b",
    b"Content-Type: text/plain", b"Content-Type: application/json; charset=utf-7",
    b"Content-Encoding: gzip", b"X-Request-Id: a b", b"X-Request-Id: " + b"x" * 70_000,
    b"X-Request-Id: \xff\xfe", b"Authorization: Bearer \x80", b"Expect: 100-continue",
    b"Connection: upgrade\r\nUpgrade: websocket", b"Connection: close, keep-alive",
    b"Host: a\r\nHost: b", b" folded: line", b"no colon", b": no name", b"Na me: x",
    b"N\x00: x", b"N: \x00", b"N: a\rb", b"N: a\nb",
    b"\r\n".join(b"N: x" for _ in range(300)), b"Range: bytes=0-",
    b"If-None-Match: *", b"Cookie: " + b"a=b;" * 500,
    b"Origin: null", b"X-Forwarded-For: ::1", b"X-HTTP-Method-Override: DELETE", b"TE: trailers",
)  # fmt: skip
METHODS = (
    b"GET",
    b"PUT",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"post",
    b"",
    b"A" * 99,
)
TARGETS = (
    b"/", b"*", b"//v1/completions", b"/v1/completions/", b"/v1/completions?a=b&a=%ff", b"/%",
    b"/v1/%63ompletions", b"/v1/models/%00", b"/v1/models/..%2f..", b"http://a/v1/completions",
    b"http://a:b:c/", b"http://a", b"a:1", b"/" + b"a" * 5000, b"/\xff", b"/%ff%fe", b"/a b",
    b"/#x", b"?",
)  # fmt: skip
VERSIONS = (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"", b"HTTP/1.1 ")


def request(
    body: bytes, *, method: bytes = b"POST", target: bytes, version: bytes = b"HTTP/1.1",
    headers: tuple[bytes, ...] = (),
) -> bytes:  # fmt: skip
    lines = (
        b"Host: t",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *headers,
    )
    return b" ".join((method, target, version)) + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


class Mutator:
    """What it makes is cut into requests as HTTP says, or is not HTTP at all."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def body_request(self) -> bytes:
        """Good HTTP around a body that is wrong."""
        path, body = self._random.choice(BODIES)
        return request(self._body(dict(body)), target=path.encode())

    def head_request(self) -> bytes:
        """A head that is wrong in one or several places."""
        rng = self._random
        path, body = rng.choice(BODIES)
        parts = {
            "method": rng.choice(METHODS),
            "target": rng.choice(TARGETS),
            "version": rng.choice(VERSIONS),
            "headers": tuple(rng.choice(HEADERS) for _ in range(rng.randint(1, 3))),
        }
        kept = rng.sample(sorted(parts), rng.randint(0, 2))
        changed = {"target": path.encode()} | {name: parts[name] for name in kept}
        data = request(json.dumps(body).encode(), **changed)
        return self._bytes(data) if rng.random() < 0.3 else data

    def path(self) -> bytes:
        return b"/" + self._random.randbytes(6).hex().encode()

    def _body(self, body: dict[str, object]) -> bytes:
        rng = self._random
        if rng.random() < 0.5:
            return self._bytes(json.dumps(body).encode())
        # One value is exchanged for another one.
        name = rng.choice(sorted(body))
        body[name] = "\x01"
        data = json.dumps(body).encode()
        return data.replace(b'"\\u0001"', rng.choice(VALUES))

    def _bytes(self, data: bytes) -> bytes:
        rng = self._random
        at = rng.randrange(len(data))
        to = min(len(data), at + rng.randint(1, 8))
        return rng.choice(
            (
                data[:at],
                data[:at] + data[to:],
                data[:to] + data[at:],
                data[:at] + rng.choice(VALUES) + data[to:],
                data[:at] + rng.randbytes(to - at) + data[to:],
                data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
            )
        )
