"""The few blocking calls that control an engine; call them in a thread."""

from __future__ import annotations

import urllib.error
import urllib.request


def healthy(url: str) -> bool:
    """Whether `url`/health answers 200 now."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def reset_prefix_cache(url: str) -> bool:
    """Whether the engine confirmed the reset: it answers 200 with `false` when it did not."""
    request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
    except (OSError, urllib.error.URLError):
        return False
    return b"true" in body.lower()
