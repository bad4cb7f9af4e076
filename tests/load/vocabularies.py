"""Tokenisers in which a text has other tokens than its parts have: merges cross every seam."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAIRS = 1000  # ids from here on stand for two letters


class Pairs:
    """Two letters are one token wherever they meet, from the left on."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            pair = text[at : at + 2]
            two = len(pair) == 2 and (ord(pair[0]) + ord(pair[1])) % 4 > 0
            ids.append(PAIRS + ord(pair[0]) * 128 + ord(pair[1]) if two else ord(pair[0]))
            at += 1 + two
        return ids

    def decode(self, ids: list[int]) -> str:
        pairs = (divmod(one - PAIRS, 128) if one >= PAIRS else (one,) for one in ids)
        return "".join(chr(letter) for pair in pairs for letter in pair)


@dataclass
class Trained:
    """A byte-level BPE as models have it, trained on `texts`; `size` is that of its vocabulary."""

    texts: Iterable[str]
    size: int = 600
    made: Tokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.made = Tokenizer(models.BPE())
        self.made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.made.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=self.size, initial_alphabet=letters, show_progress=False
        )
        self.made.train_from_iterator(self.texts, trainer)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.made.encode(text).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self.made.decode(ids)
        return text
