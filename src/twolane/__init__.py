"""Measure, explain and serve prefill/decode layouts of vLLM."""

__version__ = "0.1.0"
