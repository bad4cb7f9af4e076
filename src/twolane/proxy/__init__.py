"""The prefill/decode proxy."""
