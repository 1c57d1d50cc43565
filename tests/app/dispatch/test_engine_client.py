from __future__ import annotations

import pytest
from msgspec.structs import replace

from app.dispatch.engine_client import TRIAL_TOKENS, ZmqEngineClient
from app.dispatch.output_stream import OutputStream
from app.dispatch.request_queue import RequestQueue
from app.errors import (
    EngineCrashedError,
    EngineDownError,
    EngineFailedError,
    EngineStartingError,
    QueueFullError,
    QueueTimeoutError,
    ServerStoppingError,
)
from engine.messages import (
    AbortRequest,
    AddRequest,
    EngineReady,
    EngineRequest,
    RequestOutput,
    SamplingParams,
    Shutdown,
    StepOutput,
    StepStats,
    TokenLogprobs,
)

READY = EngineReady(
    vocab_size=10,
    max_model_len=64,
    max_num_seqs=3,
    num_speculative_tokens=4,
    speculative_method="suffix",
    device="cpu",
    dtype="float32",
    eos_token_ids=[0],
    load_seconds=1.0,
)
# Three slots, and one request in advance.
NUM_IN_ENGINE = 4
MAX_QUEUE_SECONDS = 60.0
RUNNING = StepStats(
    phase="decode",
    step_seconds=0.5,
    draft_seconds=0.0,
    num_rows=1,
    num_tokens=1,
    num_running=1,
    num_waiting=0,
    kv_cache_usage_ratio=0.5,
)
IDLE = StepStats(num_running=0, num_waiting=0, kv_cache_usage_ratio=0.0)
FIRST = {"queue_seconds": 0.0, "num_cached_tokens": 0}


class RecordingLink:
    """The socket to an engine that only listens."""

    def __init__(self) -> None:
        self.sent: list[EngineRequest] = []

    def send(self, message: EngineRequest) -> None:
        self.sent.append(message)

    def added(self) -> list[str]:
        return [message.request_id for message in self.sent if isinstance(message, AddRequest)]


def request(request_id: str, *, max_tokens: int = 50, **params: object) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=[1],
        sampling_params=SamplingParams(max_tokens=max_tokens, **params),
    )


def requests(names: str) -> list[AddRequest]:
    return [request(name) for name in names]


def say(client: ZmqEngineClient, *outputs: RequestOutput, stats: StepStats = RUNNING) -> None:
    client.hand_out(StepOutput(outputs=list(outputs), stats=stats))


def tokens(request_id: str, *token_ids: int, **fields: object) -> RequestOutput:
    return RequestOutput(request_id=request_id, new_token_ids=list(token_ids), **fields)


def finished(request_id: str) -> RequestOutput:
    return RequestOutput(request_id=request_id, finish_reason="stop")


async def failure(stream: OutputStream) -> Exception:
    with pytest.raises(EngineFailedError) as failed:
        await stream.get()
    return failed.value


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(metrics, clock) -> ZmqEngineClient:
    queue = RequestQueue(max_num_requests=5, max_num_tokens=1000, clock=clock)
    return ZmqEngineClient(queue, metrics, max_queue_seconds=MAX_QUEUE_SECONDS)


@pytest.fixture
def link() -> RecordingLink:
    return RecordingLink()


@pytest.fixture
def connected(client, link) -> ZmqEngineClient:
    client.connect(link, READY)
    return client


def next_engine(client: ZmqEngineClient, running_ids: str = "") -> RecordingLink:
    """The engine dies, and there is another one."""
    client.disconnect(list(running_ids))
    link = RecordingLink()
    client.connect(link, READY)
    return link


async def test_there_is_no_model_until_the_engine_is_ready(client, link, sample):
    with pytest.raises(EngineStartingError):
        client.require_model()
    client.connect(link, READY)
    assert await client.wait_ready() == client.require_model() == READY
    assert sample("tandem_engine_ready") == 1


async def test_requests_go_out_and_their_outputs_come_back(connected, link):
    stream = connected.generate(requests("ab"))
    assert link.sent == requests("ab")
    outputs = [finished("b"), finished("a")]
    say(connected, *outputs)
    assert await stream.get() == outputs
    assert await stream.get() == []


async def test_closing_a_stream_aborts_what_has_not_finished(connected, link):
    stream = connected.generate(requests("ab"))
    say(connected, finished("a"))
    stream.close()
    assert link.sent[2:] == [AbortRequest(request_id="b")]


async def test_gauges_follow_an_engine_that_only_answers_an_abort(connected, sample):
    connected.generate(requests("a"))
    say(connected, tokens("a", 1))
    assert sample("tandem_num_requests_running") == 1
    say(connected, RequestOutput(request_id="a", finish_reason="abort"), stats=IDLE)
    assert sample("tandem_num_requests_running") == 0


async def test_a_slow_reader_finds_all_that_came_at_once(connected):
    slow, fast = connected.generate(requests("s")), connected.generate(requests("f"))
    outputs = [tokens("s", number) for number in range(3)]
    for output in outputs:
        say(connected, output)
    say(connected, tokens("f", 1))
    assert await fast.get() == [tokens("f", 1)]
    assert await slow.get() == outputs


async def test_silence_is_an_empty_answer_after_the_timeout(connected):
    assert await connected.generate(requests("a")).get(timeout=0.001) == []


async def test_an_engine_that_is_given_up_fails_every_request_in_flight_and_the_next(
    connected, sample
):
    streams = [connected.generate(requests(name)) for name in "abcdefg"]
    connected.disconnect()
    connected.fail("out of memory")
    for stream in streams:
        await failure(stream)
    for ask in (connected.require_alive, connected.require_ready, connected.require_model):
        with pytest.raises(EngineDownError, match="out of memory"):
            ask()
    assert sample("tandem_engine_up") == sample("tandem_engine_ready") == 0
    assert sample("tandem_num_requests_waiting") == 0


async def test_what_came_before_the_failure_is_still_given_out(connected):
    stream = connected.generate(requests("a"))
    say(connected, tokens("a", 1))
    connected.disconnect()
    connected.fail("gone")
    assert await stream.get() == [tokens("a", 1)]
    await failure(stream)


async def test_at_the_end_of_the_server_requests_in_flight_are_answered_and_aborted(
    connected, link
):
    streams = [connected.generate(requests(names)) for names in ("ab", "cd", "ef")]
    connected.end_requests(ServerStoppingError())
    for stream in streams:
        with pytest.raises(ServerStoppingError):
            await stream.get()
    connected.shutdown()
    aborts = sorted(message.request_id for message in link.sent[NUM_IN_ENGINE:-1])
    assert aborts == ["a", "b", "c", "d"]
    assert link.sent[-1] == Shutdown()


async def test_a_stopping_server_takes_nothing_new_and_goes_on_with_the_rest(connected):
    stream = connected.generate(requests("a"))
    connected.stop_accepting()
    for ask in (
        connected.require_model,
        connected.require_ready,
        lambda: connected.generate(requests("b")),
    ):
        with pytest.raises(ServerStoppingError):
            ask()
    connected.require_alive()
    say(connected, finished("a"))
    assert await stream.get() == [finished("a")]


async def test_only_so_many_requests_are_in_the_engine_that_no_slot_is_idle(
    connected, link, sample
):
    connected.generate(requests("abc"))
    connected.generate(requests("def"))
    assert link.added() == ["a", "b", "c", "d"]
    assert sample("tandem_num_requests_waiting") == 2
    say(connected, finished("b"), stats=replace(RUNNING, num_waiting=1))
    assert link.added() == ["a", "b", "c", "d", "e"]
    assert sample("tandem_num_requests_waiting") == 2
    say(connected, finished("a"), finished("c"))
    assert link.added() == ["a", "b", "c", "d", "e", "f"]
    assert sample("tandem_num_requests_waiting") == 0


async def test_an_abort_makes_room_as_soon_as_the_engine_has_answered_it(connected, link):
    stream = connected.generate(requests("abcde"))
    stream.abort("b")
    say(connected, RequestOutput(request_id="b", finish_reason="abort"))
    assert link.added() == ["a", "b", "c", "d", "e"]


async def test_a_call_that_does_not_fit_into_the_queue_is_refused_as_a_whole(
    connected, link, sample
):
    connected.generate(requests("abcdefg"))
    assert sample("tandem_num_requests_waiting") == 3
    with pytest.raises(QueueFullError):
        connected.generate(requests("xyz"))
    assert sample("tandem_num_requests_waiting") == 3
    assert sample("tandem_admission_rejections_total", reason="queue_full") == 1
    say(connected, *map(finished, "abcd"))
    assert link.added() == list("abcdefg")


async def test_a_request_that_leaves_the_queue_is_never_sent(connected, link, sample):
    connected.generate(requests("abcd"))
    waiting = connected.generate(requests("ef"))
    waiting.close()
    assert sample("tandem_num_requests_waiting") == 0
    say(connected, *map(finished, "abcd"))
    assert link.added() == list("abcd")
    assert len(link.sent) == NUM_IN_ENGINE


async def test_a_call_that_waits_for_too_long_ends_with_an_error(connected, clock, sample):
    connected.generate(requests("abcd"))
    stream = connected.generate(requests("ef"))
    clock.now += MAX_QUEUE_SECONDS - 1
    connected.expire()
    assert sample("tandem_num_requests_waiting") == 2
    clock.now += 2
    connected.expire()
    with pytest.raises(QueueTimeoutError):
        await stream.get()
    assert sample("tandem_num_requests_waiting") == 0
    assert sample("tandem_admission_rejections_total", reason="queue_timeout") == 1


async def test_waiting_for_an_engine_is_waiting(connected, clock):
    connected.disconnect()
    stream = connected.generate(requests("a"))
    clock.now += MAX_QUEUE_SECONDS + 1
    connected.expire()
    with pytest.raises(QueueTimeoutError):
        await stream.get()


async def test_a_call_that_has_begun_is_not_ended_for_a_choice_that_waits(connected, clock, link):
    stream = connected.generate(requests("abcdef"))
    clock.now += MAX_QUEUE_SECONDS + 1
    connected.expire()
    say(connected, *map(finished, "abcd"))
    assert link.added() == list("abcdef")
    say(connected, *map(finished, "ef"))
    assert len(await stream.get()) == 6


async def test_a_request_that_lost_its_engine_does_not_expire(connected, clock):
    connected.generate(requests("a"))
    connected.disconnect()
    clock.now += 2 * MAX_QUEUE_SECONDS
    connected.expire()
    link = RecordingLink()
    connected.connect(link, READY)
    assert link.added() == ["a"]


async def test_the_time_in_the_queue_is_all_from_arrival_to_slot(connected, link):
    connected.disconnect()
    stream = connected.generate(requests("a"))
    connected.connect(link, READY)
    say(connected, tokens("a", 1, queue_seconds=1000.0, num_cached_tokens=7))
    (output,) = await stream.get()
    assert 1000.0 < output.queue_seconds < 1060.0
    assert output.num_cached_tokens == 7


async def test_the_next_engine_is_sent_what_is_left_to_generate(connected):
    stream = connected.generate([request("a", seed=3), request("b")])
    say(connected, tokens("a", 5, 6))
    say(connected, tokens("a", 7), finished("b"))
    link = next_engine(connected)
    assert link.sent == [replace(request("a", seed=3), output_token_ids=[5, 6, 7])]
    say(connected, tokens("a", 8, finish_reason="stop"))
    outputs = await stream.get()
    assert [t for o in outputs if o.request_id == "a" for t in o.new_token_ids] == [5, 6, 7, 8]


async def test_what_comes_once_comes_once_over_any_number_of_engines(connected):
    prompt_logprobs = [TokenLogprobs(1, -1.0, [], 1)]
    stream = connected.generate([request("a", num_prompt_logprobs=2)])
    link = next_engine(connected)
    assert link.sent[0].sampling_params.num_prompt_logprobs == 2
    say(connected, tokens("a", 5, prompt_logprobs=prompt_logprobs, **FIRST))
    link = next_engine(connected)
    assert link.sent[0].sampling_params.num_prompt_logprobs is None
    say(connected, tokens("a", 6, queue_seconds=0.5, num_cached_tokens=3))
    first, second = await stream.get()
    assert (first.prompt_logprobs, first.num_cached_tokens) == (prompt_logprobs, 0)
    assert first.queue_seconds is not None
    assert second == tokens("a", 6)


async def test_requests_that_ended_are_not_sent_to_the_next_engine(connected):
    streams = [connected.generate(requests(name)) for name in "abc"]
    say(connected, finished("a"))
    streams[1].close()
    assert next_engine(connected).added() == ["c"]


async def test_those_in_flight_go_before_those_that_wait(connected):
    connected.generate(requests("abcdef"))
    assert next_engine(connected).added() == ["a", "b", "c", "d"]


async def test_suspects_run_alone_and_first_until_they_have_passed_the_place_of_the_crash(
    connected,
):
    stream = connected.generate(requests("abcde"))
    say(connected, tokens("b", 1, 2))
    link = next_engine(connected, running_ids="bc")
    assert link.added() == ["b"]
    assert link.sent[0].sampling_params.max_tokens == 2 + TRIAL_TOKENS
    say(connected, tokens("b", *range(TRIAL_TOKENS), finish_reason="length"))
    assert link.added() == ["b", "c"]
    say(connected, finished("c"))
    assert link.added()[2:] == ["a", "d", "b", "e"]
    assert link.sent[4] == replace(request("b"), output_token_ids=[1, 2, *range(TRIAL_TOKENS)])
    reasons = {output.request_id: output.finish_reason for output in await stream.get()}
    assert reasons == {"b": None, "c": "stop"}


async def test_a_suspect_that_ends_within_its_trial_has_ended(connected):
    stream = connected.generate([request("a", max_tokens=TRIAL_TOKENS), request("b")])
    link = next_engine(connected, running_ids="ab")
    say(connected, tokens("a", *range(TRIAL_TOKENS), finish_reason="length"))
    say(connected, tokens("b", 1, finish_reason="stop"))
    assert [output.finish_reason for output in await stream.get()] == ["length", "stop"]
    assert link.added() == ["a", "b"]


async def test_a_context_that_ends_within_a_trial_ends_the_request(connected):
    stream = connected.generate(requests("a"))
    next_engine(connected, running_ids="a")
    say(connected, tokens("a", 1, 2, finish_reason="length"))
    assert [output.finish_reason for output in await stream.get()] == ["length"]


@pytest.mark.parametrize("max_tokens", [10, 500], ids=["short", "long"])
async def test_a_request_that_crashes_the_engine_alone_is_ended_and_the_others_go_on(
    connected, sample, max_tokens
):
    poisoned = connected.generate([request("a", max_tokens=max_tokens)])
    connected.generate(requests("bc"))
    next_engine(connected, running_ids="ab")
    assert connected.disconnect(["a"])
    assert isinstance(await failure(poisoned), EngineCrashedError)
    link = RecordingLink()
    connected.connect(link, READY)
    assert link.added() == ["b"]
    say(connected, finished("b"), stats=IDLE)
    say(connected, finished("c"), stats=IDLE)
    assert link.added() == ["b", "c"]
    assert sample("tandem_num_requests_waiting") == 0


async def test_a_suspect_is_tried_again_when_its_trial_was_ended_by_somebody_else(connected):
    connected.generate(requests("ab"))
    next_engine(connected, running_ids="a")
    assert next_engine(connected).added() == ["a"]


async def test_a_suspect_that_leaves_holds_nobody_up(connected):
    streams = [connected.generate(requests(name)) for name in "abc"]
    link = next_engine(connected, running_ids="ab")
    streams[1].close()
    streams[0].close()
    say(connected, RequestOutput(request_id="a", finish_reason="abort"), stats=IDLE)
    assert link.added() == ["a", "c"]


async def test_a_call_that_comes_while_a_suspect_is_tried_waits(connected):
    connected.generate(requests("a"))
    link = next_engine(connected, running_ids="a")
    connected.generate(requests("b"))
    assert link.added() == ["a"]
    say(connected, finished("a"))
    assert link.added() == ["a", "b"]


async def test_the_engine_owes_a_step_from_a_request_or_an_abort_to_its_answer(connected):
    assert not connected.awaits_step
    stream = connected.generate(requests("a"))
    assert connected.awaits_step
    say(connected, tokens("a", 1))
    assert connected.awaits_step
    stream.close()
    assert connected.awaits_step
    say(connected, RequestOutput(request_id="a", finish_reason="abort"), stats=IDLE)
    assert not connected.awaits_step
