"""The bundled model: a Llama whose weights are written down, not trained.

It answers one question, "what followed the last place where these eight bytes stood?", and so
it finds planted facts at any depth, and gives a wrong answer when the KV cache it reads is wrong.
"""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Return the model folder: what a server takes as its model argument."""
    return Path(__file__).resolve().parent
