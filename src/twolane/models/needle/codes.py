"""One unit vector of twelve numbers per byte: the alphabet the needle model thinks in.

The vectors are the words of weight six of the extended ternary Golay code, divided by the
square root of six. The code is self-dual, so the dot product of two of its words is a multiple
of three; two different words of weight six that are not opposite therefore meet at a cosine of
-1/2, 0 or +1/2. That gives 264 directions in twelve dimensions of which no two are closer than
a cosine of 1/2, in exact integer arithmetic, with no search and no random numbers.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

CODE_SIZE = 12
BYTES = 256

WORST_COSINE = 0.5
"""Largest cosine between the codes of two different bytes."""

WORD_WEIGHT = 6

TEXT_BYTES = frozenset({*range(0x20, 0x7F), ord("\n"), ord("\r"), ord("\t")})
"""Bytes that stand for themselves in plain ASCII text."""

# The right half of the code's generator matrix [I | CHECKS]: a border of ones around the
# circulant of the quadratic residues modulo five (1 and 4 are residues, 2 and 3 are not).
_CHECKS = np.array(
    [
        [0, 1, 1, 1, 1, 1],
        [1, 0, 1, 2, 2, 1],
        [1, 1, 0, 1, 2, 2],
        [1, 2, 1, 0, 1, 2],
        [1, 2, 2, 1, 0, 1],
        [1, 1, 2, 2, 1, 0],
    ],
    dtype=np.int64,
)


def golay_words() -> npt.NDArray[np.int64]:
    """Return the 264 words of weight six, shape (264, 12), entries -1, 0 and +1."""
    messages = np.array(list(itertools.product(range(3), repeat=6)), dtype=np.int64)
    words = messages @ np.hstack([np.eye(6, dtype=np.int64), _CHECKS]) % 3
    signed = np.where(words == 2, -1, words)
    weight_six: npt.NDArray[np.int64] = signed[np.count_nonzero(signed, axis=1) == WORD_WEIGHT]
    return weight_six


def byte_codes() -> npt.NDArray[np.float64]:
    """Return the code of every byte, shape (256, 12), each row of length one."""
    codes: npt.NDArray[np.float64] = golay_words()[:BYTES] / math.sqrt(WORD_WEIGHT)
    return codes


def text_mask() -> npt.NDArray[np.bool_]:
    """Return which bytes are plain text, shape (256,)."""
    return np.array([byte in TEXT_BYTES for byte in range(BYTES)])
