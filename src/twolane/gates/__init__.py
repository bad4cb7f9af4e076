"""Whether a run's numbers mean anything: needles and reason codes."""
