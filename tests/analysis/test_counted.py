"""The engines' side of a cell, from two samples whose difference is known."""

import pytest

from twolane.analysis.counted import counted
from twolane.engines import metrics

BEGIN = """\
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 100
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 50
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 10
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1000
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 10
vllm:num_preemptions_total{engine="0",model_name="m"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4
"""
END = """\
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 400
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 50
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 7
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.5
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 15
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1600
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 40
vllm:num_preemptions_total{engine="0",model_name="m"} 5
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 110
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 330
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 162
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 98
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 64
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="m"} 0.02
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="m"} 4
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 8e6
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 4
"""


def test_differences_are_summed_over_the_engines() -> None:
    begin, end = metrics.parse(BEGIN), metrics.parse(END)
    one = counted({"a": begin}, {"a": end})
    assert one == pytest.approx(
        {
            "engines_computed_tokens": 300,
            "engines_cached_tokens": 0,
            "engines_transferred_tokens": 7,
            "engines_queue_ms": 100,
            "engines_iteration_tokens": 20,
            "engines_preemptions": 3,
            "engines_kv_use_share": 0.25,
            "mtp_tokens_a_step": 2.5,
            "mtp_accepted_share": 0.5,
            "mtp_accepted_share_pos0": 0.9,
            "mtp_accepted_share_pos1": 0.6,
            "nixl_transfers": 4,
            "nixl_xfer_ms": 5,
            "nixl_transfer_mb": 2,
        }
    )
    two = counted({"a": begin, "b": begin}, {"a": end, "b": end})
    assert two["engines_computed_tokens"] == 600
    assert two["mtp_tokens_a_step"] == one["mtp_tokens_a_step"]


def test_what_no_engine_counts_is_left_out() -> None:
    assert counted({}, {}) == {}
    assert counted({"a": {}}, {"a": {}}) == {}
    assert counted({}, {"a": metrics.parse(END)}) == {"engines_kv_use_share": 0.25}
