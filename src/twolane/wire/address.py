"""The address of a server: what a connection could be opened to, and nothing else."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def split(url: str) -> SplitResult:
    """The parts of `url`. Raises ValueError, which says why, where nobody could connect to it.

    Told before anything is sent: past here a host that is none fails every request.
    """
    if any(c <= " " or c == "\x7f" for c in url):
        raise ValueError("has a space or a control character")
    parts = urlsplit(url)
    if parts.port == 0:
        raise ValueError("has port 0")
    if "@" in parts.netloc:
        raise ValueError("has a user name, which is not sent")
    host = parts.hostname or ""
    if not host.isascii():
        raise ValueError("has a host name that is not ASCII: write it as xn--...")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("has a host name with an empty or too long part") from None
    return parts
