"""Results folder in; a self-contained page, a sentence or a terminal table out.

Rules of this package: it reads results and computes nothing that `analysis` does not define. The
page is offline, without scripts, and the same bytes for the same results.
"""

from twolane.report.page import html, write
from twolane.report.text import table, verdict_sentence

__all__ = ["html", "table", "verdict_sentence", "write"]
