"""docs/how-we-measure.md and the code cannot drift apart: names, constants, codes, parts, verdicts.

Each definition in the document that holds a number is rebuilt here from the code's own constant
and must stand there in these words; each name in a table must be the code's, and each of the
code's must stand in the table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twolane.analysis import (
    attribution,
    capacity,
    chunks,
    compare,
    crossover,
    frontier,
    integrity,
    interference,
    iterations,
    prefixes,
)
from twolane.analysis import measures as m
from twolane.analysis.attribution import Part
from twolane.clock import MS, NS
from twolane.gates import transfers, validity
from twolane.load import closed_loop, mix
from twolane.report import decision, methods
from twolane.report.codes import CODES, REMEDIES
from twolane.report.metrics import ALL

ROOT = Path(__file__).parents[1]
TYPED = str.maketrans("\N{MINUS SIGN}\N{MULTIPLICATION SIGN}", "-x")
TEXT = (ROOT / "docs" / "how-we-measure.md").read_text(encoding="utf-8").translate(TYPED)
WORDS = " ".join(TEXT.split())
SOURCES = {path: path.read_text("utf-8") for path in (ROOT / "src" / "twolane").rglob("*.py")}


def table(heading: str) -> dict[str, str]:
    """First and second column of the first table under a heading."""
    part = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: row[1] for row in cells[1:]}


# ---------------------------------------------------------------------------------------- codes


def test_every_reason_code_is_documented_and_no_other() -> None:
    documented = [name.strip("`") for name in table("Reason codes")]
    assert sorted(documented) == sorted(CODES)
    assert set(documented) == set(REMEDIES)


def test_every_reason_code_in_the_source_is_known() -> None:
    given = {
        code for text in SOURCES.values() for code in re.findall(r'\bcode="([A-Z]+)"', text)
    }  # fmt: skip
    assert len(given) >= 10
    assert given | {integrity.CODE} == set(CODES)


# ---------------------------------------------------------------------------------------- names

FUNCTIONS = {
    "TTFT": (m.ttft_ns, "t_1 - t_send"),
    "TPOT": (m.tpot_ns, "(t_last - t_1) / (N - n_1)"),
    "gap": (m.gaps, "t_{k+1} - t_k"),
    "E2E": (m.e2e_ns, "t_last - t_send"),
    "throughput": (m.throughput_tok_s, "tokens that arrived in the window / window"),
    "in-flight": (m.inflight, "time-weighted mean of requests between t_send and t_last"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_measure_has_one_formula_in_the_document_and_in_its_function(name: str) -> None:
    function, formula = FUNCTIONS[name]
    rows = table("Per request") | table("Per cell")
    assert formula in rows[name]
    if name != "gap":  # its function gives the gap's two ends
        said = " ".join((function.__doc__ or "").lower().replace("-", " ").split())
        asked = formula.lower().replace("-", " ").replace("mean of", "mean of the")
        assert all(word in said for word in asked.split()), said


def test_modules_and_metrics_that_the_document_names_exist() -> None:
    names = re.findall(r"`((?:analysis|gates|report)/\w+\.py)`", TEXT)
    assert names
    for name in names:
        assert (ROOT / "src" / "twolane" / name).exists(), name


def test_the_reports_formulas_are_the_documents() -> None:
    """Each formula of a shown metric uses the document's words for its pieces."""
    formulas = {metric.key: metric.formula for metric in ALL}
    assert "t_1 - t_send" in formulas["ttft_p50_ms"]
    assert "(t_last - t_1) / (N - n_1)" in formulas["tpot_p50_ms"]
    assert "tokens that arrived inside the window / window" in formulas["throughput_tok_s"]
    lost = "quiet rate x duration of the hit - tokens received"
    assert lost in formulas["tokens_lost"]
    assert "tokens lost = quiet rate x duration - tokens received" in WORDS
    stall = f"max({m.STALL_FACTOR:g} x median gap of that stream's own quiet phase, "
    assert f"{stall}{m.STALL_FLOOR_NS // MS} ms)" in formulas["stalled_s"]


# ------------------------------------------------------------------------------------ constants


def percent(value: float) -> str:
    return f"{value * 100:g} %"


FLOORS = ", ".join(
    f"{f'p{p} only' if p == 90 else f'p{p}'} with n ≥ {n}"
    for p, n in sorted(m.PERCENTILE_FLOORS.items())
)
FLUENT, PATIENT = capacity.SLOS
SAID = {
    "stall": f"a gap > max({m.STALL_FACTOR:g} x median gap of that stream's own quiet phase, "
    f"{m.STALL_FLOOR_NS // MS} ms)",
    "percentile floors": FLOORS,
    "recovered": f"seconds until within {percent(round(1 - interference.RECOVERED_SHARE, 9))} of "
    "the quiet rate",
    "inflight": f"mean in-flight under {percent(validity.INFLIGHT_SHARE)} of the target",
    "little": f"differs from in-flight by more than {percent(validity.LITTLE_TOLERANCE)}",
    "cache": f"more than {transfers.CACHE_TOLERANCE * 100:g} point from what the generator expects",
    "busy": f"more than {percent(validity.FOREIGN_SHARE)} of the host's CPU time",
    "unexplained": f"a median over {percent(attribution.FINDING_SHARE)} of TTFT is a finding",
    "margin": f"an equivalence margin of {percent(compare.MARGIN)}",
    "near": f"a worst pause within {decision.NEAR:g} times the shortest or within "
    f"{decision.NULL_REACH:g} times its own null run's",
    "limits": "under {:g} ms and under {:g} ms at a prompt of p tokens".format(
        *frontier.GAP_LIMITS_MS
    ),
    "unnoticed": f"that arm's pause is within {crossover.UNNOTICED_MS:g} ms",
    "flat": f"changes the pause by less than {percent(frontier.FLAT_SHARE)}",
    "fluent": f"*{FLUENT.name}*, first token within {FLUENT.ttft_ms:g} ms, {FLUENT.tpot_ms:g} ms "
    "a token",
    "patient": f"*{PATIENT.name}*, {PATIENT.ttft_ms:,g} ms and {PATIENT.tpot_ms:g} ms; each for "
    f"{percent(PATIENT.share)} of requests",
    "waited": f"over {percent(iterations.WAITED_SHARE)} of the logged times are under "
    f"{iterations.SHORTEST_NS / MS:g} ms",
    "skew": f"stamps may be {chunks.SKEW_NS / MS:g} ms apart",
    "clearly": f"hold more than {chunks.CLEARLY:g} times the time",
    "bands": f"powers of two from {prefixes.FIRST_BAND:,}",
    "iterations": f"at most {iterations.MISFIT:g} over {iterations.AROUND} gaps around the longest",
    "warm-up of a mix": "The first requests, a fifth of the window's time, warm up",
}


@pytest.mark.parametrize("name", SAID)
def test_a_constant_stands_in_the_document_as_it_is_in_the_code(name: str) -> None:
    assert SAID[name] in WORDS


def test_constants_that_the_document_has_in_words() -> None:
    assert mix.WARM_SHARE == 0.2
    assert interference.RECOVERY_WINDOW_NS == NS
    assert closed_loop.FAILURES_IN_A_ROW == 20


# ------------------------------------------------------------------------------ ledger, verdicts


def test_the_ledgers_parts_are_the_codes_parts() -> None:
    rows = table("The first token's ledger")
    named = {part.strip() for row in rows for part in row.split(",")}
    spoken = {Part.D_QUEUE: "D queue and transfer"}
    split = [p for p in Part if p not in attribution.DIRECT]
    assert named == {spoken.get(part, str(part)) for part in split}
    for name in ("queue_time_ms", "time_to_first_token_ms"):
        assert any(name in text for text in rows.values())
        assert any(name in text for text in attribution.MEANING.values())


def test_the_verdicts_are_the_codes_verdicts() -> None:
    outcomes = set(compare.Outcome.__args__)  # type: ignore[attr-defined]
    assert outcomes == {"A better", "B better", "equal", "cannot tell", "indicative"}
    verdicts = (
        "`A better`, `B better`, `equal within m %`, or `cannot tell, k more blocks would do`"
    )
    assert verdicts in WORDS
    assert "One block is only *indicative*" in WORDS


def test_the_answers_are_defined_alike_in_the_document_and_on_the_page() -> None:
    """The report's own methods section and the document give the same numbers and words."""
    page = dict(methods.answered())
    document = " ".join(table("The answers").values()) + " ".join(table("The answers"))
    shared = (
        "in every run",
        "gap = o + T_decode + c x (a + b x p)",
        "that line leaves more than the limit at budget 0",
    )
    for words in shared:
        assert words in page["Largest budget, c*(p)"]
        assert words in document
    assert "best aggregated arm on as many devices" in page["A split pays"]
    assert "best aggregated arm on as many devices" in document
    assert "met every limit lies at or above the asked share" in page["Users per device"]
    assert "met every limit lies at or above the asked share" in document
