"""How far results can be relied on as a whole: what is lost, changed, unsealed or unreadable.

Rules of this file: sentences for people, the same in the terminal, in the answers and on the page,
so that nothing is lost in silence; and whether there is anything at all to answer from.
"""

from __future__ import annotations

from collections.abc import Iterable

from twolane.analysis.integrity import CODE
from twolane.analysis.points import Measured
from twolane.analysis.results import Results

_NAMED = 4


def answerable(measured: Iterable[Measured]) -> bool:
    """Whether a single point is left that may enter an answer."""
    return any(one.values and not one.codes for one in measured)


def caveats(results: Results, measured: Iterable[Measured]) -> list[str]:
    """What a reader of any figure of `results` has to know, one sentence each."""
    found = [
        _unfinished(results),
        _lost(results),
        _absent(results),
        _damaged(measured),
        _unsealed(results),
        _faults(results),
    ]
    return [sentence for sentence in found if sentence]


def _unfinished(results: Results) -> str:
    open_ = [f"{run.arm} {run.meta.status}" for run in results.runs if not run.finished]
    if not open_:
        return ""
    planned = _count(len(results.runs) + len(results.absent), "run")
    return f"Not finished: {len(open_)} of {planned} ({', '.join(open_)})."


def _lost(results: Results) -> str:
    if not results.lost:
        return ""
    arms = ", ".join(results.lost)
    return f"Lost or not run: no run of {arms} can be read here, so nothing is said of it."


def _absent(results: Results) -> str:
    if not results.absent:
        return ""
    some = ", ".join(f"{arm} in block {block + 1}" for arm, block in results.absent[:_NAMED])
    more = " ..." if len(results.absent) > _NAMED else ""
    mine = [run for run in results.runs if run.label is None]
    planned = len({(run.arm, run.block) for run in mine}) + len(results.absent)
    whole = len({(run.arm, run.block) for run in mine if run.finished})
    done = f"{whole} of {_count(planned, 'run')} done"
    return f"Missing: {some}{more} ({done})."


def _damaged(measured: Iterable[Measured]) -> str:
    spoilt = [one for one in measured if any(code.code == CODE for code in one.codes)]
    if not spoilt:
        return ""
    arms = ", ".join(dict.fromkeys(one.run.arm for one in spoilt))
    return f"Damaged since they were written: {_count(len(spoilt), 'cell')} of {arms} ({CODE})."


def _unsealed(results: Results) -> str:
    if not results.unsealed:
        return ""
    return (
        f"{len(results.unsealed)} of {_count(len(results.runs), 'run')} lack checksums, as an "
        "older twolane left them; lines doubled, lost or edited since would go unseen."
    )


def _faults(results: Results) -> str:
    if not results.faults:
        return ""
    first = next(iter(results.faults))
    place = first.path.removeprefix(f"{results.folder}/")
    line = f", line {first.line}" if first.line else ""
    count = _count(len(results.faults), "fault")
    return f"Unreadable, changed or left out: {count}, first {place}{line}: {first.why}."


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"
