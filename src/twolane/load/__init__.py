"""The load generator: cells in, request records out."""
