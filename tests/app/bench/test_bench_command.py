"""`tandem bench` against servers that do well and servers that do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from bench_server import DONE, BenchServer, chunk, end, says

from app.__main__ import main

PROMPTS = [{"kind": kind, "prompt": f"{kind}:", "max_tokens": 4, "id": kind} for kind in "abc"]


@pytest.fixture
def bench(tmp_path: Path, bench_server: BenchServer) -> Callable[..., int]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, PROMPTS)))

    def bench(*flags: str, url: str = bench_server.url) -> int:
        return main(["bench", "--url", url, "--prompts", str(prompts), *flags])

    return bench


def test_it_prints_a_table_and_writes_the_numbers(bench, tmp_path, capsys):
    assert bench("--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b")) == 0
    out = capsys.readouterr().out
    assert "All sides wrote the same bytes, in all 6 answers." in out
    data = json.loads((tmp_path / "b.json").read_text())
    on = data["levels"][0]["kinds"]["a"]["on"]
    assert (on["num_tokens"], on["num_accepted_tokens"], on["acceptance_rate"]) == (4, 3, 1.0)
    assert (tmp_path / "b.png").exists()
    assert (tmp_path / "b.svg").exists()


def test_another_side_is_first_for_each_prompt(bench, bench_server):
    assert bench("--compare", 'k1={"speculative": {"num_speculative_tokens": 1}}') == 0
    asked = [(b["prompt"], b["speculative"]) for b in bench_server.measured]
    pinned = {"num_speculative_tokens": 1}
    assert asked == [
        *(("a:", False), ("a:", True), ("a:", pinned)),
        *(("b:", True), ("b:", pinned), ("b:", False)),
        *(("c:", pinned), ("c:", False), ("c:", True)),
    ]


def test_no_request_can_draft_from_another(bench, bench_server):
    assert bench("--repeat", "2") == 0
    salts = [body["cache_salt"] for body in bench_server.bodies]
    assert len(set(salts)) == len(salts)


def test_requests_of_a_level_are_asked_together(bench, bench_server):
    assert bench("--concurrency", "1,3") == 0
    names = [body["prompt"] for body in bench_server.measured]
    assert sorted(names[-6:]) == ["a:", "a:", "b:", "b:", "c:", "c:"]
    assert len(names) == 12


def test_other_bytes_are_an_error_that_says_where(bench, bench_server, capsys):
    same, other = says("a b c d"), says("a b x d")
    bench_server.say = lambda body: (other if body["speculative"] else same)(body)
    assert bench() == 1
    assert "the bytes differ at prompt a: from character 4 on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([{"error": {"message": "too busy"}}], "too busy"),
        ([chunk("a", 1)], "before its end"),
        ([chunk("a", 1), DONE], "is this a Tandem server?"),
        (["{"], "cannot be read"),
        ([end(0), DONE], None),
    ],
    ids=["error", "cut", "no metrics", "no json", "no text"],
)
def test_answers_that_break_off_end_it(bench, bench_server, capsys, events, problem):
    bench_server.say = lambda _body: iter(events)
    assert bench() == (1 if problem else 0)
    assert (problem or "") in capsys.readouterr().err


def test_servers_that_refuse_or_are_not_there_are_named(bench, bench_server, dead_url, capsys):
    assert bench(url=dead_url) == 1
    assert f"cannot reach {dead_url}" in capsys.readouterr().err
    bench_server.refusal = (401, b'{"error": {"message": "no key"}}')
    assert bench() == 1
    assert (
        "answered 401 to /v1/models: no key; give a key with --api-key" in capsys.readouterr().err
    )
    bench_server.refusal = (200, b"{}")
    assert bench() == 1
    assert "does not list its model" in capsys.readouterr().err


def test_the_key_and_the_path_of_the_url_are_sent(bench, bench_server):
    assert bench("--api-key", "secret", url=f"{bench_server.url}/prefix/v1/") == 0
    assert set(bench_server.keys) == {"Bearer secret"}
    assert set(bench_server.paths) == {"/prefix/v1/models", "/prefix/v1/completions"}


@pytest.mark.parametrize(
    "flags",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1,x"],
        ["--repeat", "-1"],
        ["--temperature", "3"],
        ["--compare", "x"],
        ["--compare", "on={}"],
        ["--", "--dtype", "float32"],
    ],
    ids=" ".join,
)
def test_wrong_flags_are_refused_before_anything_is_asked(bench, bench_server, flags):
    with pytest.raises(SystemExit) as exit_:
        bench(*flags)
    assert exit_.value.code == 2
    assert not bench_server.paths


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_files_that_cannot_be_written_are_refused_before_anything_is_asked(
    bench, bench_server, tmp_path, flag
):
    assert bench(flag, str(tmp_path)) == 1
    assert bench(flag, str(tmp_path / "none" / "file")) == 1
    assert not bench_server.paths


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://host", "http://host:99999"], ids=str)
def test_what_is_no_url_is_refused(bench, url, capsys):
    assert bench(url=url) == 1
    assert "is not a URL" in capsys.readouterr().err
