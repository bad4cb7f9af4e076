"""The command that holds arms against each other."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
import msgspec

from twolane import comparison
from twolane.analysis.compare import Comparison
from twolane.cli.frame import JSON, cli
from twolane.comparison import Compared, Row
from twolane.report import answers_prefix, left_out
from twolane.report.answer import listed
from twolane.report.facts import Figure
from twolane.report.metrics import number, ratio, unit_for

MODEL = "model"  # as the confounds call it


@cli.command()
@click.argument("results", metavar="RESULTS", type=click.Path(path_type=Path))
@click.argument("second", metavar="[RESULTS2]", required=False, type=click.Path(path_type=Path))
@click.option("--against", metavar="ARM", help="The reference; default: the arm that ran first.")
@click.option("--aa", metavar="RESULTS3", type=click.Path(path_type=Path),
              help="A campaign of equal arms: its spread is the noise floor.")  # fmt: skip
@click.option("--factor", "declared", multiple=True, metavar="WHAT",
              help="A listed difference that is meant; may be given again.")  # fmt: skip
@click.option("--recompute", is_flag=True,
              help="Take every value from the requests, sealed or not.")  # fmt: skip
@JSON
def compare(
    results: Path,
    second: Path | None,
    *,
    against: str | None,
    aa: Path | None,
    declared: tuple[str, ...],
    recompute: bool,
    as_json: bool,
) -> None:
    """Arms against each other, in every measure and service level, with what spoils a comparison.

    RESULTS2 is another results folder, whose arms are held against their namesakes, or a file of
    another client, shown beside without a verdict: `vllm bench serve --save-result
    --save-detailed`, AIPerf's profile_export.jsonl or profile_export_aiperf.json.
    Exit code 1 if no two arms have a point in common that may be compared.

    \b
    Example:
      twolane compare results/demo
      twolane compare results/before results/after --factor versions --json
    """
    compared = comparison.compare_folders(
        results, second, against=against, floor_from=aa, declared=declared, recompute=recompute
    )
    if as_json:
        click.echo(msgspec.json.encode(comparison.as_json(compared)))
    else:
        click.echo("\n".join(_lines(compared)))
    if not compared.answered:
        sys.exit(1)


def _lines(compared: Compared) -> list[str]:
    facts = compared.facts
    results = facts.results
    lines = [
        f"{results.campaign}: {len(results.runs)} run{'s' * (len(results.runs) != 1)}, "
        f"{len(results.blocks)} block{'s' * (len(results.blocks) != 1)}, margin "
        f"{facts.margin * 100:g} %, noise floor {_floors(compared)}"
    ]
    cell = ""
    for row in sorted((*compared.rows, *compared.levels), key=lambda row: _place(compared, row)):
        if all(one.value is None for one in row.figures):
            continue
        if row.cell.id != cell:
            cell = row.cell.id
            lines += ["", click.style(cell, bold=True)]
        lines += _row(row, several=len({one.b for one in row.against}) > 1)
    lines += [
        "",
        "A ratio is the median of the blocks\u2019 own ratios: it need not be the quotient of the "
        "medians shown.",
        *answers_prefix.plain(facts),
        *_undeclared(compared),
        *_confounds(compared),
        *_excluded(compared),
        *_others(compared),
        "",
    ]
    lines += [click.style(caveat, fg="yellow") for caveat in facts.caveats]
    if not compared.answered:
        lines.append(click.style("No two arms can be compared here.", fg="red"))
    return lines


def _place(compared: Compared, row: Row) -> int:
    """Rows of one cell together, in the order of the cells."""
    return [cell.id for cell in compared.facts.cells].index(row.cell.id)


def _floors(compared: Compared) -> str:
    known = compared.floors
    if not known:
        return f"not known: {compared.no_floor} (--aa names a campaign that has one)"
    least, most = (number((floor - 1) * 100) for floor in (min(known), max(known)))
    return f"{least} to {most} %, by measure"


def _row(row: Row, *, several: bool) -> list[str]:
    """A measure's name, then a line an arm: figure, ratio with interval, verdict, codes."""
    values = [one.value for one in row.figures] + [value for _, value in row.foreign]
    unit, factor = unit_for(row.metric.unit, values)
    named = ", ".join(filter(None, [row.metric.label, unit]))
    better = "" if row.metric.lower_is_better else " (more is better)"
    against = f", against {row.against[0].b}" if row.against and not several else ""
    names = [one.arm for one in row.figures] + [one.source for one, _ in row.foreign]
    width = max(map(len, names))
    found = {one.a: one for one in row.against}
    lines = [f"  {named}{better}{against}"]
    for one in row.figures:
        told = _told(found.get(one.arm), row, several=several)
        lines.append(
            f"    {one.arm:{width}} {_value(one, factor):>9}  {told}{_codes(one)}".rstrip()
        )
    for client, value in row.foreign:
        text = number(value * factor)
        lines.append(f"    {client.source:{width}} {text:>9}  {client.tool}, no verdict")
    return lines


def _value(figure: Figure, factor: float) -> str:
    text = number(None if figure.value is None else figure.value * factor)
    return f"({text})" if figure.excluded else text


def _codes(figure: Figure) -> str:
    codes = " ".join(dict.fromkeys(code.code for code in figure.codes))
    if not codes:
        return ""
    return click.style(f"  {'excluded' if figure.excluded else 'some runs'}: {codes}", fg="yellow")


def _told(one: Comparison | None, row: Row, *, several: bool) -> str:
    if one is None:
        return ""
    words = one.verdict.replace("A better", "better").replace("B better", "worse")
    beside = f" [against {one.b}]" if several else ""
    if one.ratio is None and row.metric.may_vanish and not one.left_out:
        return f"no ratio: 0 or less in a block{beside}"
    if one.ratio is None:
        return f"{words}{beside}"
    times = ratio(one.ratio)
    between = ""
    if one.low is not None and one.high is not None:
        between = f" ({ratio(one.low)[:-1]} to {ratio(one.high)[:-1]})"
    return f"{times}{between}, {words}{beside}"


def _undeclared(compared: Compared) -> list[str]:
    """What stands between the arms and a verdict, and how to say that it is meant."""
    severe = [one for one in compared.facts.confounds if one.severity == "severe"]
    open_ = [one for one in severe if one.what not in compared.declared]
    if not open_:
        return []
    models = next((one for one in open_ if one.what == MODEL), None)
    lines = ["", f"No verdict between arms that also differ in {listed([o.what for o in open_])}."]
    if models is not None:
        names = listed(list(dict.fromkeys(models.values.values())))
        lines.append(f"Models ({names}) differ in more than their settings: ratios are theirs too.")
    words = " ".join(f"--factor {shlex.quote(one.what)}" for one in open_)
    return [*lines, f"Where that is what you ask: {words}"]


def _confounds(compared: Compared) -> list[str]:
    found = compared.facts.confounds
    if not found:
        return ["", "Nothing else differs between the arms."]
    lines = ["", "What differs between the arms:"]
    for one in found:
        mark = "declared" if one.what in compared.declared else one.severity
        values = "; ".join(f"{arm} {value}" for arm, value in one.values.items())
        lines.append(f"  {one.what} ({mark}): {values}")
    return lines


def _excluded(compared: Compared) -> list[str]:
    coded = compared.facts.coded()
    if not coded:
        return ["", "No point is excluded."]
    head = f"Excluded: {len(coded)} of {len(compared.facts.measured)} measured cells:"
    return ["", head, *(f"  {line}" for line in left_out.plain(compared.facts))]


def _others(compared: Compared) -> list[str]:
    lines: list[str] = []
    for one in compared.foreign:
        whose = "by our definitions over its requests" if one.recomputed else "its own summary"
        lines += ["", f"{one.source} ({one.tool}): {one.requests:,} requests, {one.failed:,} "
                  f"failed; values are {whose}. What differs:"]  # fmt: skip
        lines += [f"  {difference}" for difference in one.differences]
    return lines
