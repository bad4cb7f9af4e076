"""What a model is, wherever its folder lies: the same on every host that holds the same files.

Rules of this file: it reads small files and the sizes of large ones, never gigabytes. A run's key
is made of this, so that results can be carried to another host, or another path, and go on there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

_SMALL = ("config.json", "model.safetensors.index.json")
"""What fixes a model's shape, and which tensor lies in which file."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


def of_model(path: str, *, weights: bool = True) -> str:
    """Identity of the model at `path`: of its content for a folder, else its hub name.

    Weights are told apart by name and size; not at all without `weights`, for dummy ones.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        return f"hub:{path}"
    digest = hashlib.sha256()
    for name in _SMALL if weights else _SMALL[:1]:
        file = folder / name
        digest.update(f"{name}\0".encode() + (file.read_bytes() if file.is_file() else b"-"))
    if weights:
        found = sorted({f for pattern in _WEIGHTS for f in folder.glob(pattern)})
        digest.update("".join(f"\0{f.name}\0{f.stat().st_size}" for f in found).encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def has_dummy_weights(args: Iterable[str]) -> bool:
    """Whether an engine with these arguments makes its weights up."""
    words = " ".join(args).replace("=", " ").replace("_", "-").split()
    return any(a == "--load-format" and b == "dummy" for a, b in pairwise(words))
