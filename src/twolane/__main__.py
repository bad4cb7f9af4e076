"""`python -m twolane`, and the `twolane` command.

The commands are imported inside, so that Ctrl-C in the second that takes is no traceback.
"""

import io
import sys


def _writable() -> None:
    """A terminal or pipe that is not UTF-8 gets `?` for what it cannot show, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in _WHOLE:
            stream.reconfigure(errors="replace")


_WHOLE = ("utf-8", "utf8")


def main() -> None:
    _writable()
    try:
        from twolane.cli import main as command  # noqa: PLC0415 - see above
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
