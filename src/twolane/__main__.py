"""`python -m twolane` is `twolane`."""

from twolane.cli import main

main()
