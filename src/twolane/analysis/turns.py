"""A conversation's turns: what an engine may have cached of each, and what it had.

Rules of this file: pure functions of `records.Request`. vLLM caches whole blocks and always
computes a prompt's last token. The engine that answered holds KV of all but the last token of
its answer; in a split the prefill engine holds the prompt alone.
"""

from __future__ import annotations

from twolane.records import Request


def is_split(request: Request) -> bool:
    return request.ledger is not None and request.ledger.path == "split"


def cacheable_tokens(request: Request, block: int, *, decoded_here: bool) -> int:
    """Prompt tokens that an engine which had the turn before must have cached, a multiple of
    `block` tokens; `decoded_here` says whether that engine also made the answer."""
    held = request.history - 1 if decoded_here else request.history_prompt
    prompt = request.prompt_tokens or request.prompt_asked
    return max(0, min(held, prompt - 1)) // block * block


def cached_tokens(request: Request) -> int | None:
    """Prompt tokens that the engine which prefilled had cached, by its own account."""
    if is_split(request):
        assert request.ledger is not None
        times = request.ledger.p_times
        return times.cached_tokens if times is not None else None
    return request.cached_tokens


def expected_share(request: Request, block: int) -> float | None:
    """Share of the prompt that must have been cached where it was prefilled."""
    prompt = request.prompt_tokens
    if not prompt:
        return None
    return cacheable_tokens(request, block, decoded_here=not is_split(request)) / prompt


def cached_share(request: Request) -> float | None:
    """Share of the prompt that was cached where it was prefilled."""
    cached = cached_tokens(request)
    return cached / request.prompt_tokens if cached is not None and request.prompt_tokens else None
