"""Models that come with twolane."""
