"""vLLM process trees: launch, ready, logs, stop, metrics."""
