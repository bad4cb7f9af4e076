"""Raw records in, numbers and verdicts out."""
