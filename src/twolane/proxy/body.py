"""A request's JSON body, taken apart one level deep.

Rules of this file: values that are only relayed are never decoded; a body is its top-level
members, each value the client's own bytes. Putting the members together again keeps the last of
duplicate keys, which is what the engine would have read, so that nothing we looked at can be
overruled by a second key behind it. Measured on one core of a small machine: 7 MB of text take a
decoder 1.3 ms to take apart, full of escapes 12 ms, a million token ids 8.5 ms; so large bodies
are scanned in steps (`scan`), between which other streams get their turn.

What an engine must never hear from a client: `kv_transfer_params` in any place that vLLM reads
(top level, and `vllm_xargs`, which becomes the same dictionary), because malformed ones raise
inside the scheduler and take the engine down.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import msgspec

from twolane.proxy.refusal import RefusalError
from twolane.proxy.scan import NotAnObjectError, members
from twolane.records import UNREADABLE
from twolane.wire.http1 import Payload

TRANSFER_KEYS = ("kv_transfer_params", "ec_transfer_params")
LARGE = 512 * 1024  # bytes; what a decoder does with less takes under a millisecond
_MAY_BE_ALONE = frozenset(
    ("n", "best_of", "echo", "use_beam_search", "prompt_logprobs", "prompt_embeds")
)
_ASK_PREFILL = b'{"do_remote_decode":true,"do_remote_prefill":false}'
_Members = dict[str, msgspec.Raw]
_decode_members = msgspec.json.Decoder(_Members).decode


Value = bytes | memoryview | msgspec.Raw


class Body(msgspec.Struct, frozen=True):
    """One JSON object. `members` maps each key to the raw bytes of its value."""

    members: Mapping[str, Value]
    size: int

    @classmethod
    def parse(cls, raw: bytes | bytearray) -> Body:
        """Raises RefusalError 400 where `raw` is not a JSON object."""
        try:
            return cls(_decode_members(raw), len(raw))
        except UNREADABLE as error:
            raise RefusalError(400, f"the request body is not a JSON object: {error}") from None

    @classmethod
    def parse_in_steps(cls, raw: bytes | bytearray) -> Generator[None, None, Body]:
        """As `parse`, a little at each step. Raises RefusalError 400."""
        try:
            spans = yield from members(raw)
        except NotAnObjectError as error:
            raise RefusalError(400, f"the request body is not a JSON object: {error}") from None
        view = memoryview(raw)
        return cls({key: view[start:end] for key, (start, end) in spans.items()}, len(raw))

    def value(self, key: str) -> Any:
        """The decoded value of a small member; None where it is absent or null."""
        raw = self.members.get(key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw)
        except UNREADABLE as error:
            raise RefusalError(400, f"`{key}` is not valid JSON: {error}") from None

    @property
    def streams(self) -> bool:
        return self.value("stream") is True

    def with_members(self, changes: Mapping[str, bytes | None]) -> Payload:
        """The body with members replaced, added, or where the change is None left out.

        A large one stays in pieces: putting 7 MB together takes some milliseconds at once.
        """
        return self._pieces(changes) if self.size > LARGE else self.joined(changes)

    def _pieces(self, changes: Mapping[str, bytes | None]) -> list[bytes | memoryview]:
        parts: list[bytes | memoryview] = []
        for key, value in self.members.items():
            if key not in changes:
                parts += (b",", msgspec.json.encode(key), b":", memoryview(value))
        for key, new in changes.items():
            if new is not None:
                parts += (b",", msgspec.json.encode(key), b":", new)
        return [b"{", *parts[1:], b"}"]

    def joined(self, changes: Mapping[str, bytes | None]) -> bytes:
        """As `with_members`, in one piece whatever its size."""
        merged = {**self.members, **changes}
        return msgspec.json.encode({k: msgspec.Raw(v) for k, v in merged.items() if v is not None})

    def plain(self) -> Payload:
        """What an engine gets that works alone: the client's body without transfer keys."""
        return self.with_members(self._without_transfer())

    def plain_or(self, raw: bytes | bytearray) -> Payload:
        """`raw` itself where it holds no transfer keys, so that it is not put together again."""
        dirty = any(self.members.get(key) is not None for key in (*TRANSFER_KEYS, "vllm_xargs"))
        return self.plain() if dirty else raw

    def for_prefill(self, *, ids: bool = False) -> Payload:
        """What P gets: one token, not streamed, keep the blocks; with `ids` also tell the
        prompt's token ids."""
        changes = self._one_token() | {"kv_transfer_params": _ASK_PREFILL}
        return self.with_members(changes | ({"return_token_ids": b"true"} if ids else {}))

    def for_last_read(self, params: bytes) -> Payload:
        """What D gets so that it takes the blocks and stops."""
        return self.with_members(self._one_token() | {"kv_transfer_params": params})

    def _one_token(self) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = self._without_transfer()
        changes |= {"stream": b"false", "stream_options": None, "max_tokens": b"1", "n": None}
        if "max_completion_tokens" in self.members:
            changes["max_completion_tokens"] = b"1"
        if "min_tokens" in self.members:
            changes["min_tokens"] = _at_most_one(self.value("min_tokens"))
        return changes

    def for_decode(self, params: bytes, ids: bytes | None = None) -> Payload:
        """What D gets: the client's body and P's parameters, verbatim.

        With the prompt's `ids` from P, D does not tokenise again: vLLM takes them as a completion's
        prompt, and as a chat's `kv_transfer_params.prompt_token_ids`, which it ignores by itself
        where the messages hold more than text.
        """
        changes = self._without_transfer()
        if ids is not None and "messages" in self.members:
            params = Body.parse(params).joined({"prompt_token_ids": ids})
        elif ids is not None:
            changes["prompt"] = ids
        return self.with_members(changes | {"kv_transfer_params": params})

    @property
    def is_text(self) -> bool:
        """Whether the prompt has to be tokenised: messages, or one string."""
        prompt = self.members.get("prompt")
        return "messages" in self.members or (
            prompt is not None and bytes(memoryview(prompt)[:1]) == b'"'
        )

    def for_release(self, params: bytes) -> bytes:
        """What D refuses: an unknown model, whose refusal makes D tell P to free the blocks."""
        small = {
            "model": b'"twolane-releases-a-handoff"',
            "max_tokens": b"1",
            "kv_transfer_params": params,
        }
        small["messages" if "messages" in self.members else "prompt"] = (
            b'[{"role":"user","content":"-"}]' if "messages" in self.members else b'"-"'
        )
        return Body({}, 0).joined(small)

    def _without_transfer(self) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = dict.fromkeys(TRANSFER_KEYS)
        extra = self.value("vllm_xargs")
        if isinstance(extra, dict) and any(key in extra for key in TRANSFER_KEYS):
            kept = {key: value for key, value in extra.items() if key not in TRANSFER_KEYS}
            changes["vllm_xargs"] = msgspec.json.encode(kept)
        return changes

    def alone_because(self) -> str | None:
        """Why one handoff cannot serve this request; None where it can.

        A handoff serves exactly one sequence and gives back no prompt log-probabilities.
        """
        return next(self._reasons(), None)

    @property
    def fans_out(self) -> bool:
        """Whether several answers to one prompt are all that a handoff cannot serve here."""
        n = self.value("n")
        return list(self._reasons()) == ["n"] and isinstance(n, int) and n > 1

    def _reasons(self) -> Iterator[str]:
        if not _MAY_BE_ALONE.isdisjoint(self.members):
            yield from self._settings()
        if _is_list_of_prompts(self.members.get("prompt")):
            yield "prompt_list"

    def _settings(self) -> Iterator[str]:
        for key in ("n", "best_of"):
            if self.value(key) not in (None, 1):
                yield key
        for key in ("echo", "use_beam_search"):
            if self.value(key) not in (None, False):
                yield key
        for key in ("prompt_logprobs", "prompt_embeds"):
            if self.value(key) is not None:
                yield key


def _at_most_one(given: Any) -> bytes:
    """`min_tokens` for P: what was asked where it is valid for one token, else one."""
    return b"1" if isinstance(given, int) and given > 1 else msgspec.json.encode(given)


def _is_list_of_prompts(raw: Value | None) -> bool:
    """`[1, 2]` is one prompt; `["a"]` and `[[1]]` are lists, even of one."""
    if raw is None:
        return False
    start = bytes(memoryview(raw)[:64]).lstrip()
    return start[:1] == b"[" and start[1:].lstrip()[:1] in (b'"', b"[")


def without_transfer(answer: bytes) -> bytes:
    """An engine's JSON answer without its transfer keys; everything else byte for byte.

    What is not a JSON object is returned as it is: embeddings and errors pass here too.
    """
    if not any(b'"%s"' % key.encode() in answer for key in TRANSFER_KEYS):
        return answer
    try:
        decoded = _decode_members(answer)
    except UNREADABLE:
        return answer
    return Body(decoded, 0).joined(dict.fromkeys(TRANSFER_KEYS))
