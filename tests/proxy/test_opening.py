"""What shows that an engine works on a request, however its stream is cut."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.rig import completion, expected, rig, soon

from twolane.proxy.opening import Opening

TOKEN = b'data: {"id": "a", "choices": [{"index": 0, "text": "x"}]}\n\n'
ERROR = b'data: {"error": {"message": "m", "code": 500}}\n\n'
COMMENT = b": keep-alive\n\n"
STRANGE = [b'data: {"choices": []}\n\n', b"data: {}\n\n", b"data: [DONE]\n\n", b"data: <p>\n\n"]
STRANGE += [b'data: {"text": "\\"choices\\": [{}]"}\n\n', b'data: {"choices": null}\n\n']
STRANGE += [b'data: {"choices": %b}\n\n' % no for no in (b"[null]", b"[[]]", b'["{}", 1]')]


def fed(*pieces: bytes) -> Opening:
    opening = Opening()
    for piece in pieces:
        opening.feed(piece)
    return opening


@given(st.lists(st.sampled_from([*STRANGE, COMMENT, ERROR])), st.data())
def test_only_a_choice_is_a_token_wherever_the_stream_is_cut(
    before: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(before)
    for stream, taken in ((raw, False), (raw + TOKEN, True)):
        at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
        cuts = [0, *at, len(stream)]
        pieces = [stream[a:b] for a, b in pairwise(cuts)]
        opening = fed(*pieces)
        assert opening.taken == taken
        assert (opening.error is not None) == (ERROR in before)
        assert opening.kept_alive == (COMMENT in before)
        assert opening.strange == any(one != COMMENT for one in before)


def test_the_first_error_is_kept() -> None:
    opening = fed(ERROR, ERROR.replace(b"500", b"400"), TOKEN)
    assert opening.error is not None
    assert json.loads(opening.error)["error"]["code"] == 500
    assert opening.taken


def test_an_event_without_its_end_is_not_one_yet() -> None:
    assert not fed(TOKEN[:-1]).taken


async def test_a_keep_alive_reaches_a_client_that_waits_for_its_first_token() -> None:
    async with rig() as r:
        gate = r.d.behaviour.after_head = asyncio.Event()
        call = await r.call(completion(stream=True))
        await call.first()
        assert r.proxy.book.held == 1  # a comment is no token
        gate.set()
        got = await call.answer()
        assert (got.text, got.comments, got.complete) == (expected(), [b"keep-alive"], True)
        assert r.proxy.book.ends == {"admitted": 2}


async def test_an_engine_that_kept_alive_and_closed_says_so_in_the_stream() -> None:
    async with rig() as r:
        gate = r.d.behaviour.after_head = asyncio.Event()
        call = await r.call(completion(stream=True))
        await call.first()
        r.d.stop()
        got = await call.answer()
        assert json.loads(got.events[-1])["error"]["code"] == 502
        assert not got.complete
        await r.d.start(r.d.port)
        gate.set()


async def test_who_leaves_after_the_head_and_before_a_token_frees_the_blocks() -> None:
    async with rig() as r:
        r.d.behaviour.after_head = asyncio.Event()
        call = await r.call(completion(stream=True))
        await call.first()
        call.leave()
        await soon(r.d.left)
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 2}  # D aborts it, and so tells P
