"""An independent Llama in numpy, to hold the bundled model's weights against.

Written from the architecture's definition, not from the builder: it knows nothing of codes and
slots. `rounding` is applied wherever an engine stores a number, so that an engine that computes
in bfloat16 can be imitated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Rounding = Callable[[Array], Array]
Damage = Callable[[int, Array, Array], tuple[Array, Array]]

QUERIES_AT_ONCE = 256


def exact(numbers: Array) -> Array:
    """Keep float32 as it is."""
    return numbers


def bfloat16(numbers: Array) -> Array:
    """Round to the nearest number of eight significant bits, ties to even."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def healthy(_layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
    """Leave the cache alone."""
    return keys, values


@dataclass(frozen=True)
class Llama:
    """Weights by their file names and the configuration they belong to."""

    config: Mapping[str, Any]
    weights: Mapping[str, Array]
    rounding: Rounding = exact

    def logits(self, tokens: bytes, last: int, damage: Damage = healthy) -> Array:
        """Return the logits of the last `last` positions, shape (last, vocabulary).

        `damage` may change a layer's keys and values, each of shape (heads, tokens, size): every
        query head has its own copy here, as on devices that do not share a cache.
        """
        stream = self._weight("model.embed_tokens")[np.frombuffer(tokens, dtype=np.uint8)]
        for layer in range(self.config["num_hidden_layers"]):
            # The last layer is only needed where its output is read.
            wanted = last if layer == self.config["num_hidden_layers"] - 1 else len(tokens)
            mixed = self._attention(layer, stream, wanted, damage)
            stream = self.rounding(stream[-wanted:] + mixed)
            stream = self.rounding(stream + self._mlp(layer, stream))
        return self._linear("lm_head", self._norm("model.norm", stream[-last:]))

    def _weight(self, name: str) -> Array:
        return self.rounding(self.weights[f"{name}.weight"])

    def _linear(self, name: str, inputs: Array) -> Array:
        return self.rounding(inputs @ self._weight(name).T)

    def _norm(self, name: str, inputs: Array) -> Array:
        scale = np.sqrt(np.mean(inputs**2, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return self.rounding(inputs / scale * self._weight(name))

    def _mlp(self, layer: int, stream: Array) -> Array:
        prefix = f"model.layers.{layer}"
        inputs = self._norm(f"{prefix}.post_attention_layernorm", stream)
        gate = self._linear(f"{prefix}.mlp.gate_proj", inputs)
        up = self._linear(f"{prefix}.mlp.up_proj", inputs)
        return self._linear(f"{prefix}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def _heads(self, name: str, inputs: Array) -> Array:
        """Project and split, shape (heads, tokens, size)."""
        flat = self._linear(name, inputs)
        size = self.config["head_dim"]
        return flat.reshape(len(inputs), -1, size).transpose(1, 0, 2)

    def _rotate(self, heads: Array, first: int) -> Array:
        """Turn pair i, dimensions i and i + size / 2, by position * theta ** (-2 i / size)."""
        size = self.config["head_dim"]
        rates = self.config["rope_theta"] ** (-np.arange(0, size, 2) / size)
        angles = np.arange(first, first + heads.shape[1])[:, None] * rates
        cosines = self.rounding(np.cos(angles).astype(np.float32))
        sines = self.rounding(np.sin(angles).astype(np.float32))
        left, right = np.split(heads, 2, axis=-1)
        turned = [left * cosines - right * sines, right * cosines + left * sines]
        return self.rounding(np.concatenate(turned, axis=-1))

    def _attention(self, layer: int, stream: Array, wanted: int, damage: Damage) -> Array:
        prefix = f"model.layers.{layer}"
        inputs = self._norm(f"{prefix}.input_layernorm", stream)
        first = len(stream) - wanted
        queries = self._rotate(self._heads(f"{prefix}.self_attn.q_proj", inputs[first:]), first)
        keys = self._rotate(self._heads(f"{prefix}.self_attn.k_proj", inputs), 0)
        values = self._heads(f"{prefix}.self_attn.v_proj", inputs)
        copies = (len(queries) // len(keys), 1, 1)
        keys, values = damage(layer, np.tile(keys, copies), np.tile(values, copies))
        found = [
            self._attend(queries[:, start : start + QUERIES_AT_ONCE], keys, values, first + start)
            for start in range(0, wanted, QUERIES_AT_ONCE)
        ]
        joined = self.rounding(np.concatenate(found, axis=1)).transpose(1, 0, 2)
        return self._linear(f"{prefix}.self_attn.o_proj", joined.reshape(wanted, -1))

    def _attend(self, queries: Array, keys: Array, values: Array, first: int) -> Array:
        """Attend causally from positions `first` on, shape (heads, queries, size)."""
        seen = first + queries.shape[1]
        scores = queries @ keys[:, :seen].transpose(0, 2, 1) / np.sqrt(self.config["head_dim"])
        future = np.arange(seen) > first + np.arange(queries.shape[1])[:, None]
        scores[:, future] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        shares = np.exp(scores, out=scores)
        shares /= shares.sum(axis=-1, keepdims=True)
        result: Array = shares.astype(np.float32) @ values[:, :seen]
        return result
