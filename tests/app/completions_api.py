"""Calls of /v1/completions as tests make them."""

from __future__ import annotations

import json


async def complete(client, **fields):
    response = await client.post("/v1/completions", json={"prompt": "Hi", "seed": 1, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def refuse(client, status_code=400, **fields):
    response = await client.post("/v1/completions", json={"prompt": "Hi", **fields})
    assert response.status_code == status_code, response.text
    return response.json()["error"]


async def stream(client, **fields):
    """The chunks of a stream, after a look at its wire form."""
    body = {"prompt": "Hi", "seed": 1, "stream": True, **fields}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]
