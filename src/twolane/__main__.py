"""`python -m twolane`, and the `twolane` command.

The commands are imported inside, so that Ctrl-C in the second that takes is no traceback.
"""

import sys


def main() -> None:
    try:
        from twolane.cli import main as command  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
