"""/openapi.json is true: schemathesis asks what it says may be asked, and more."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import HealthCheck, Phase, given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")


def checks():
    conformance = importlib.import_module("schemathesis.specs.openapi.checks")
    return [
        schemathesis.checks.not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_schema_conformance,
    ]


# Bodies whose answer is a 200; each route that takes a body has some here.
MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD_BODIES = {
    "POST /v1/completions": [
        {"prompt": "Hi"},
        {"prompt": [[70], [71]], "n": 2, "logprobs": 2, "echo": True, "return_token_ids": True},
        {"prompt": "Hi", "stream": True},
    ],
    "POST /v1/chat/completions": [
        {"messages": MESSAGES},
        {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"messages": MESSAGES, "stream": True},
    ],
    "POST /tokenize": [{"prompt": "Hi"}, {"messages": MESSAGES}],
    "POST /detokenize": [{"tokens": [70, 71]}],
}


def check_examples(operation, mode):
    """The examples are the same ones always."""

    @settings(
        max_examples=25,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        case.call_and_validate(checks=checks())

    check()


def test_every_answer_is_one_that_the_document_promises(app):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    for found in schema.get_all_operations():
        operation = found.ok()
        check_examples(operation, schemathesis.GenerationMode.POSITIVE)
        # Without a body there is nothing to get wrong.
        if not list(operation.body):
            continue
        check_examples(operation, schemathesis.GenerationMode.NEGATIVE)
        for body in GOOD_BODIES[operation.label]:
            case = operation.Case(body=body, media_type="application/json")
            assert case.call_and_validate(checks=checks()).status_code == 200


async def test_the_document_names_every_error_of_a_route_with_a_body(client):
    document = (await client.get("/openapi.json")).json()
    responses = document["paths"]["/v1/completions"]["post"]["responses"]
    errors = {code for code in responses if code != "200"}
    assert errors == {"400", "401", "404", "408", "413", "415", "429", "500", "503"}
    for code in errors:
        schema = responses[code]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorResponse"}
    assert "text/event-stream" in responses["200"]["content"]


async def test_no_route_promises_a_422(client):
    document = (await client.get("/openapi.json")).json()
    assert "422" not in str(document)
    assert "HTTPValidationError" not in document["components"]["schemas"]
