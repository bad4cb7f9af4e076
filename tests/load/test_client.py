"""The answer's collector, fed with raw bytes at planted stamps; no sockets."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.clock import MS
from twolane.load.body import body_of, head_of
from twolane.load.client import Stream
from twolane.load.orders import Ask, Target
from twolane.records import EngineTimes, Request

ASK = Ask(key=1, id="r1", cell="c", role="grid", index=3, prompt=4, output=6, keep_text=True)
TARGET = Target("127.0.0.1", 8000, "golden")


class Answer:
    """One stream, fed at 10 ms, 20 ms, ..."""

    def __init__(self, ask: Ask = ASK, status: int = 200) -> None:
        self.done: list[Request] = []
        self.firsts: list[int] = []
        self.stream = Stream(ask, self.done.append, self.firsts.append, worker=2, due_ns=0)
        self.stream.on_head(status, [])
        self.now = 0

    def feed(self, *payloads: Any) -> None:
        self.now += 10 * MS
        self.stream.on_body(b"".join(map(event, payloads)), self.now)

    def end(self) -> Request:
        self.stream.on_end(self.now + MS)
        return self.done[0]


def event(payload: Any) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return b"data: " + text.encode() + b"\n\n"


def chunk(text: str, sent: int | None = None, finish: str | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if sent is not None:
        told["usage"] = {"prompt_tokens": 4, "completion_tokens": sent}
    return told


def chat(delta: dict[str, Any], sent: int | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {"choices": [{"index": 0, "delta": delta}]}
    if sent is not None:
        told["usage"] = {"prompt_tokens": 4, "completion_tokens": sent}
    return told


READS = {
    "token": event(chunk("ab", 7)),
    "uncounted": event(chunk("c")),
    "two": event(chunk("d", 7)) + event(chunk("e", 7)),
    "half": event(chunk("f", 7))[:30],
    "other half": event(chunk("f", 7))[30:],
    "end": event(chunk("", 7, "length")),
    "usage": event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}}),
    "unreadable": b"data: {\n\n",
    "two in one": event('{"choices": []}, {"choices": []}'),
    "open": event('{"choices": [], "id": "'),
    "closed": event('"}'),
    "no text": b'data: {"id": "\xff"}\n\n',
    "error": event({"error": {"message": "planted"}}),
    "comment": b": twolane-ledger {\n\n",
    "done": event("[DONE]"),
}
"""Reads by what is in them; a 7 is the number of tokens so far."""


def test_a_completion_becomes_a_record() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1))
    answer.feed(chunk("b", 2))
    answer.feed(chunk("", 3, "length"))
    answer.feed({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}}, "[DONE]")
    assert answer.end() == Request(
        id="r1",
        cell="c",
        role="grid",
        index=3,
        worker=2,
        send_ns=0,
        due_ns=0,
        prompt_asked=4,
        output_asked=6,
        status=200,
        first_ns=10 * MS,
        last_ns=30 * MS,
        end_ns=41 * MS,
        prompt_tokens=4,
        output_tokens=3,
        finish_reason="length",
        text="ab",
        gaps_ns=[10 * MS, 10 * MS],
    )
    assert answer.firsts == [10 * MS]


def test_tokens_are_the_servers_count() -> None:
    """Several tokens in one event, and an event with text that carries none."""
    answer = Answer()
    answer.feed(chunk("abc", 3))
    answer.feed(chunk("d", 3))
    answer.feed(chunk("ef", 5, "length"))
    request = answer.end()
    assert request.tokens == [3, 2]
    assert request.gaps_ns == [20 * MS]
    assert request.output_tokens == 5


@given(st.lists(st.sampled_from(sorted(READS)), max_size=12), st.booleans())
def test_what_was_laid_by_is_read_as_if_it_had_been_read_at_once(
    kinds: list[str], keeps: bool
) -> None:
    """Whole events, halves, several in a read, unreadable ones: the record is the same."""
    ask = msgspec.structs.replace(ASK, keep_text=keeps)
    late, at_once = Answer(ask), Answer(ask)
    for number, kind in enumerate(["token", *kinds], 1):
        for answer in (late, at_once):
            answer.stream.on_body(READS[kind].replace(b"7", b"%d" % number), number * MS)
        at_once.stream._read_all()
    assert late.end() == at_once.end()


def test_without_a_count_an_event_with_text_is_a_token() -> None:
    answer = Answer()
    answer.feed(chunk("a"), chunk(""))
    answer.feed(chunk("b", finish="stop"))
    request = answer.end()
    assert (request.output_tokens, request.tokens, request.gaps_ns) == (2, [], [10 * MS])


def test_the_final_usage_corrects_the_sum() -> None:
    answer = Answer()
    answer.feed(chunk("ab"))
    answer.feed(chunk("cd", finish="stop"))
    answer.feed({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 4}})
    assert answer.end().output_tokens == 4


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning": "a"},
        {"reasoning_content": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_every_kind_of_chat_delta_is_a_token(delta: dict[str, Any]) -> None:
    answer = Answer()
    answer.feed(chat({"role": "assistant", "content": ""}))
    answer.feed(chat(delta))
    answer.feed("[DONE]")
    request = answer.end()
    assert request.error is None
    assert (request.first_ns, request.output_tokens) == (20 * MS, 1)


def test_the_role_event_of_a_counting_server_is_no_token() -> None:
    answer = Answer()
    answer.feed(chat({"role": "assistant", "content": ""}, 0))
    answer.feed(chat({"content": "a"}, 1), "[DONE]")
    assert answer.end().first_ns == 20 * MS


def test_events_of_one_read_share_its_stamp() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1), chunk("b", 2))
    answer.feed(chunk("c", 3, "length"))
    assert answer.end().gaps_ns == [0, 10 * MS]


def test_the_engines_own_account_is_kept() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1, "length"))
    answer.feed(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 4,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
            "metrics": {"queue_time_ms": 1.5, "time_to_first_token_ms": 8.0, "mean_itl_ms": None},
        }
    )
    request = answer.end()
    assert request.cached_tokens == 2
    assert request.engine_times == EngineTimes(queue_ms=1.5, first_token_ms=8.0, cached_tokens=2)


def test_the_ledger_comment_is_kept() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1, "length"), "[DONE]")
    answer.stream.on_body(b': twolane-ledger {"path":"direct","boot":"b","received_ns":7}\n\n', 9)
    answer.stream.on_body(b": keep-alive\n\n", 9)
    ledger = answer.end().ledger
    assert ledger is not None
    assert (ledger.path, ledger.received_ns) == ("direct", 7)


VLLM = b"""\
data: {"id":"cmpl-9a37","object":"text_completion","created":1795971198,"model":"needle",\
"choices":[{"index":0,"text":"1","logprobs":null,"finish_reason":null,"stop_reason":null,\
"prompt_token_ids":null,"token_ids":null}],\
"usage":{"prompt_tokens":36,"total_tokens":37,"completion_tokens":1}}

data: {"id":"cmpl-9a37","object":"text_completion","created":1795971198,"model":"needle",\
"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":10,\
"prompt_token_ids":null,"token_ids":null}],\
"usage":{"prompt_tokens":36,"total_tokens":38,"completion_tokens":2}}

data: {"id":"cmpl-9a37","object":"text_completion","created":1795971198,"model":"needle",\
"choices":[],"usage":{"prompt_tokens":36,"total_tokens":38,"completion_tokens":2,\
"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"vllm-0.32.0-183ceb26",\
"metrics":{"time_to_first_token_ms":5.5,"generation_time_ms":18.0,"queue_time_ms":0.025,\
"mean_itl_ms":4.5,"tokens_per_second":212.1}}

data: [DONE]

"""


def test_a_stream_of_vllm_0_32_as_it_came() -> None:
    """The end-of-text token is a token of its own, without text."""
    answer = Answer()
    for at, piece in enumerate(VLLM.split(b"\n\n")[:-1]):
        answer.stream.on_body(piece + b"\n\n", at * MS)
    request = answer.end()
    assert (request.error, request.finish_reason, request.text) == (None, "stop", "1")
    assert (request.prompt_tokens, request.cached_tokens) == (36, 0)
    assert (request.output_tokens, request.gaps_ns) == (2, [MS])
    assert request.engine_times == EngineTimes(queue_ms=0.025, first_token_ms=5.5, cached_tokens=0)


# ----------------------------------------------------------------------------- what goes wrong


def test_an_error_event_fails_the_request_and_keeps_what_came() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1))
    answer.feed({"error": {"message": "KV load failure", "code": 500}}, "[DONE]")
    request = answer.end()
    assert request.error == "error in the stream: KV load failure"
    assert request.output_tokens == 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "too long"}}', "HTTP 400: too long"),
        (b'{"message": "too long"}', "HTTP 400: too long"),
        (b"<h1>Bad</h1>", "HTTP 400: <h1>Bad</h1>"),
        (b"", "HTTP 400: empty body"),
        (b"[1]", "HTTP 400: [1]"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(body: bytes, says: str) -> None:
    answer = Answer(status=400)
    answer.stream.on_body(body[:5], 1)
    answer.stream.on_body(body[5:], 2)
    request = answer.end()
    assert (request.error, request.status) == (says, 400)


def test_a_lost_connection_says_how_far_it_came() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1))
    answer.stream.on_lost(None, 99 * MS)
    assert answer.done[0].error == "connection lost after 1 tokens: closed by the server"
    assert answer.done[0].end_ns == 99 * MS


def test_a_stream_that_just_ends_is_no_success() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1))
    assert answer.end().error == "the stream ended after 1 tokens without saying why"


def test_an_answer_without_tokens_is_no_success() -> None:
    answer = Answer()
    answer.feed(chunk("", 0, "stop"), "[DONE]")
    assert answer.end().error == "the answer held no token"


def test_an_unreadable_event_fails_the_request() -> None:
    answer = Answer()
    answer.feed("{nonsense", chunk("a", 1, "length"))
    assert (answer.end().error or "").startswith("unreadable event b'{nonsense'")


def test_an_unreadable_ledger_fails_the_request() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1, "length"))
    answer.stream.on_body(b": twolane-ledger {}\n\n", 9)
    assert (answer.end().error or "").startswith("unreadable ledger")


def test_a_stopped_stream_is_a_success_and_ends_once() -> None:
    answer = Answer()
    answer.feed(chunk("a", 1))
    answer.stream.stop()
    answer.stream.on_lost(ConnectionResetError(), 99)
    assert len(answer.done) == 1
    assert (answer.done[0].error, answer.done[0].finish_reason) == (None, "stopped_by_client")


# ---------------------------------------------------------------------------------- what is sent


def test_a_completion_asks_for_counts_and_a_fixed_length() -> None:
    assert msgspec.json.decode(body_of(ASK, TARGET, "abcd")) == {
        "model": "golden",
        "prompt": "abcd",
        "max_tokens": 6,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_a_chat_says_the_prompt_as_the_user() -> None:
    target = Target("127.0.0.1", 8000, "golden", endpoint="chat")
    body = msgspec.json.decode(body_of(ASK, target, "abcd"))
    assert body["messages"] == [{"role": "user", "content": "abcd"}]
    assert head_of(ASK, target, 9).startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


def test_the_head_names_the_request_and_asks_for_the_ledger() -> None:
    head = head_of(ASK, TARGET, 12)
    assert b"X-Request-Id: r1\r\n" in head
    assert b"X-Twolane-Ledger: 1\r\n" in head
    assert b"Content-Length: 12\r\n" in head
