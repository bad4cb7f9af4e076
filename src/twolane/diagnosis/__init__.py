"""Known mistakes: found before start-up and in the logs afterwards."""
