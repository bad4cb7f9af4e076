"""Cache memory by kind of layer, against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnosis.fleet import DENSE, HYBRID, MLA, SLIDING

from twolane.diagnosis.kv_memory import kv_need, longest, value_bytes
from twolane.diagnosis.model_shape import ModelShape, shape_of


def shape(config: object) -> ModelShape:
    found = shape_of(config)
    assert found is not None
    return found


def test_full_attention_needs_two_heads_dims_per_token_and_layer() -> None:
    need = kv_need(shape(DENSE), 32768)
    assert need.total == need.full == 36 * 32768 * 2 * 8 * 128 * 2  # 4.5 GiB


def test_tensor_parallelism_divides_heads_until_one_is_left() -> None:
    whole = kv_need(shape(DENSE), 1600).full
    assert kv_need(shape(DENSE), 1600, tp=4).full == whole // 4
    assert kv_need(shape(DENSE), 1600, tp=16).full == kv_need(shape(DENSE), 1600, tp=8).full


def test_mla_keeps_one_latent_on_every_rank() -> None:
    need = kv_need(shape(MLA), 1600)
    assert need.total == need.mla == 61 * 1600 * (512 + 64) * 2
    assert kv_need(shape(MLA), 1600, tp=8).mla == need.mla
    assert kv_need(shape(MLA), 1600, dcp=4).mla == need.mla // 4


def test_a_sliding_window_stops_growing() -> None:
    need = kv_need(shape(SLIDING), 131072, in_flight=8192)
    per_token = 2 * 8 * 128 * 2
    assert need.full == 6 * 131072 * per_token
    assert need.sliding == 30 * (576 + 1) * 16 * per_token  # ceil((1023 + 8192) / 16) blocks + 1


def test_linear_attention_needs_a_constant() -> None:
    short, long = kv_need(shape(HYBRID), 16), kv_need(shape(HYBRID), 262144)
    conv = (2 * 16 * 128 + 32 * 128) * 3
    assert short.state == long.state == 36 * (conv + 32 * 128 * 128) * 2
    assert long.full == 12 * 262144 * 2 * 2 * 256 * 2


def test_mamba2_state_of_a_nemotron_like_model() -> None:
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M-M*",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "ssm_state_size": 128,
        "mamba_num_heads": 16,
        "mamba_head_dim": 64,
        "n_groups": 4,
        "conv_kernel": 4,
    }
    found = shape(config)
    assert (found.recurrent, found.full, found.layers) == (2, 1, 3)
    assert kv_need(found, 16).state == 2 * ((1024 + 2 * 4 * 128) * 3 + 1024 * 128) * 2


@pytest.mark.parametrize(
    ("cache", "model", "size"),
    [("auto", "bfloat16", 2), ("auto", "float32", 4), ("fp8_e4m3", "bfloat16", 1),
     ("bfloat16", "float32", 2), ("auto", "torch.float16", 2), ("nvfp4", "bfloat16", 0.5625)],
)  # fmt: skip
def test_bytes_of_a_value(cache: str, model: str, size: float) -> None:
    assert value_bytes(cache, model) == size


@given(st.integers(1, 10**6), st.sampled_from([DENSE, HYBRID, MLA, SLIDING]))
def test_the_longest_that_fits_fits_and_one_block_more_does_not(
    tokens: int, config: dict[str, object]
) -> None:
    found = shape(config)
    available = kv_need(found, tokens).total
    fits = longest(found, available)
    assert kv_need(found, fits).total <= available < kv_need(found, fits + 1).total
    assert fits >= tokens
