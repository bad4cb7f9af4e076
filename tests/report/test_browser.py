"""The report in real Chromium: offline, silent, and readable at the width of a phone and a desk."""

from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.report.synthetic import GRID, INTERFERENCE, make

from twolane.records import Code
from twolane.report import write

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
WIDTHS = (390, 1280)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Debian's chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = Code(code="INFLIGHT", why="mean in-flight 3.1 of 4", value=3.1, limit=3.8)
    folder = tmp_path_factory.mktemp("report") / "demo"
    return write(make(folder, blocks=2, codes={"copies_256": {GRID.id: [code]}}))


class Opened:
    """A page, with everything that the browser complained of or asked for."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())

    def pixels(self) -> Any:
        """The whole page as rows of RGB."""
        return np.asarray(
            Image.open(io.BytesIO(self.page.screenshot(full_page=True))).convert("RGB")
        )


@pytest.fixture(params=WIDTHS)
def opened(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[Opened]:
    one = Opened(browser, page_file, request.param)
    yield one
    one.page.close()


def test_it_asks_for_nothing_and_complains_of_nothing(opened: Opened, page_file: Path) -> None:
    assert opened.asked == [page_file.as_uri()]
    assert opened.said == []


def test_a_page_that_fetched_or_ran_something_would_be_caught(
    browser: Any, page_file: Path, tmp_path: Path
) -> None:
    """The test above can fail: a smuggled image and a script are seen and stopped."""
    text = page_file.read_text(encoding="utf-8")
    smuggled = '<img src="http://127.0.0.1:9/x.png"><script>console.error("ran")</script></body>'
    bad = tmp_path / "bad.html"
    bad.write_text(text.replace("</body>", smuggled), encoding="utf-8")
    one = Opened(browser, bad, 1280)
    assert len([line for line in one.said if "Content Security Policy" in line]) == 2
    assert "ran" not in one.said
    one.page.close()


def test_nothing_is_wider_than_the_window(opened: Opened) -> None:
    wide, inner = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= inner


def test_the_figures_of_three_arms_fit_without_scrolling(opened: Opened) -> None:
    box = opened.page.locator("#figures .scroll")
    wide, inner = box.evaluate("(e) => [e.scrollWidth, e.clientWidth]")
    assert wide <= inner + 1


def test_the_tables_that_vouch_for_the_figures_are_not_cut(opened: Opened) -> None:
    cut = opened.page.evaluate(
        """[...document.querySelectorAll('#gates .scroll, #machine .scroll')].filter(
            (box) => box.scrollWidth > box.clientWidth + 1).length"""
    )
    assert cut == 0
    shown = opened.page.locator("#gates thead").first.bounding_box()
    assert shown is not None
    assert (shown["width"] > 100) == (opened.page.viewport_size["width"] > 640)


def test_the_verdict_is_on_the_first_screen(opened: Opened) -> None:
    verdict = opened.page.locator("#verdict")
    assert verdict.is_visible()
    words = verdict.inner_text().replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "0.046 s" in words
    box = verdict.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900


def test_what_is_unfolded_is_read_over_the_whole_width(opened: Opened) -> None:
    """In lines that are neither those of a column nor longer than a page's."""
    boxes = opened.page.locator(".boxes")
    folded = boxes.locator("details", has_text="In full")
    before = boxes.locator(".confidence").bounding_box()
    folded.locator("summary").click()
    whole, after = boxes.bounding_box(), boxes.locator(".confidence").bounding_box()
    line = folded.locator("p").first.bounding_box()
    assert before is not None
    assert after is not None
    assert whole is not None
    assert line is not None
    assert after["width"] == pytest.approx(whole["width"], abs=1)
    if opened.page.viewport_size["width"] > 640:
        assert after["width"] > before["width"] + 100
        assert 560 < line["width"] <= 44 * 16
    folded.locator("summary").click()
    assert boxes.locator(".confidence").bounding_box() == before


def test_a_ratio_and_its_blocks_stand_below_each_other(browser: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=2)
    last = max((folder / "runs").glob("*copies_256*"), key=lambda path: path.name[-6:])
    shutil.rmtree(last)
    page_file = write(folder)
    for width in WIDTHS:
        one = Opened(browser, page_file, width)
        pairs = one.page.locator(".told:has(.versus + .versus)")
        assert pairs.count() > 0
        for told in pairs.all():
            first, second = (told.locator(".versus").nth(i).bounding_box() for i in (0, 1))
            assert first is not None
            assert second is not None
            assert second["y"] >= first["y"] + first["height"] - 1
        one.page.close()


def test_the_strips_show_the_stall_as_a_hole(opened: Opened) -> None:
    """Pixels of the first two strips along the middle of the band: one has a hole, one has none."""
    holes = []
    for index in (0, 1):
        strip = opened.page.locator("#streams .strip svg").nth(index)
        image = Image.open(io.BytesIO(strip.screenshot())).convert("RGB")
        row = np.asarray(image)[int(image.height * 0.7)].astype(int)
        blue = (row[:, 2] > row[:, 0] + 50).nonzero()[0]
        inside = range(int(blue[0]), int(blue[-1]))
        holes.append(1 - len(blue) / len(inside))
    assert holes[0] > 0.2
    assert holes[1] < 0.02


def test_a_spoiled_arm_is_hollow_and_stands_on_the_same_axis(browser: Any, tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    one = Opened(browser, write(make(tmp_path / "r", codes={"split_1p1d": busy})), 1280)
    fills, lefts = one.page.evaluate(
        """[...document.querySelectorAll('#streams > .timeline > .panel')].map((panel) =>
            [getComputedStyle(panel.querySelector('.band')).fill,
             panel.querySelector('svg').getBoundingClientRect().left])
            .reduce(([a, b], [x, y]) => [[...a, x], [...b, y]], [[], []])"""
    )
    assert [fill == "none" for fill in fills] == [False, False, True, False]
    assert len(set(lefts)) == 1
    one.page.close()


def test_every_chart_has_marks(opened: Opened) -> None:
    empty = opened.page.evaluate(
        """[...document.querySelectorAll('#streams > .timeline svg, .waits svg')].filter((svg) =>
            svg.getBoundingClientRect().width < 100 ||
            ![...svg.querySelectorAll('path')].some((p) => p.getTotalLength() > 0)).length"""
    )
    assert empty == 0
    bars = opened.page.locator(".ledger .bar")
    assert bars.count() == 6
    for index in range(6):
        widths = (
            bars.nth(index)
            .locator("> .part")
            .evaluate_all("(parts) => parts.map((p) => p.getBoundingClientRect().width)")
        )
        assert len(widths) >= 5
        assert sum(widths) > 50


def test_letters_are_large_enough_to_read(opened: Opened) -> None:
    smallest = opened.page.evaluate(
        """Math.min(...[...document.querySelectorAll('body *')].filter(
            (e) => [...e.childNodes].some((n) => n.nodeType == 3 && n.data.trim()) &&
                   e.getClientRects().length && !e.closest('.unseen'))
            .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""
    )
    assert smallest >= 10.5


def test_it_is_dark_in_the_dark(browser: Any, page_file: Path) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        one = Opened(browser, page_file, 1280, scheme)
        shades[scheme] = np.median(one.pixels())
        one.page.close()
    assert shades["light"] > 240
    assert shades["dark"] < 40


def test_every_link_and_table_can_be_reached_by_keyboard(opened: Opened) -> None:
    page = opened.page
    wanted = page.locator("a, summary, [tabindex='0']").count()
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")
        )
    hidden = page.evaluate(
        "[...document.querySelectorAll(\"a, summary, [tabindex='0']\")]"
        ".filter((e) => !e.checkVisibility()).length"
    )
    assert len(reached - {-1}) >= wanted - hidden
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_it_prints_in_ink_on_paper(browser: Any, page_file: Path) -> None:
    """Also from a dark screen: paper is white, and no page is lost."""
    one = Opened(browser, page_file, 1280, "dark")
    one.page.emulate_media(media="print")
    colours = one.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert colours == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert one.page.pdf(format="A4")[:5] == b"%PDF-"
    one.page.close()


def test_decision_confidence_and_what_is_left_out_are_on_the_first_screen(
    browser: Any, tmp_path: Path
) -> None:
    busy = {GRID.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    page_file = write(make(tmp_path / "r", codes={"copies_256": busy}))
    for width in WIDTHS:
        one = Opened(browser, page_file, width)
        for what in (".decision", ".box.confidence", ".box.left-out b"):
            box = one.page.locator(what).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 900, what
        assert "BUSY" in one.page.locator(".box.left-out").inner_text()
        one.page.close()


def test_a_point_tells_its_figures_on_hover_and_on_focus_and_leads_to_them(opened: Opened) -> None:
    page = opened.page
    spot = page.locator("#frontier .spot").first
    tip = spot.locator(".tip")
    assert not tip.is_visible()
    spot.hover()
    assert tip.is_visible()
    page.mouse.move(0, 0)
    spot.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert tip.is_visible()
    page.keyboard.press("Enter")
    target = page.locator(":target")
    assert target.count() == 1
    assert page.url.endswith("#" + target.get_attribute("id"))
    assert target.evaluate("(e) => getComputedStyle(e).outlineStyle") == "solid"
    page.wait_for_function(
        """() => { const at = document.querySelector(':target').getBoundingClientRect();
                   return at.top >= 0 && at.bottom <= innerHeight; }"""
    )


def test_the_long_prompts_lane_lies_under_the_shade_of_the_strips(opened: Opened) -> None:
    """The same seconds: the prefill begins and ends where the shaded time does, within 2 px."""
    for panel in opened.page.locator("#streams > .timeline > .panel:not(.null)").all():
        shade = panel.locator(".hit").first.bounding_box()
        last = panel.locator(".hit").last.bounding_box()
        own = panel.locator(".lane-row").first
        first = own.locator(".piece").first.bounding_box()
        answer = own.locator(".piece.answer").bounding_box()
        assert shade is not None
        assert last is not None
        assert first is not None
        assert answer is not None
        assert abs(first["x"] - shade["x"]) < 2
        assert abs(answer["x"] - (last["x"] + last["width"])) < 2


def test_names_of_points_do_not_lie_on_each_other(opened: Opened) -> None:
    for plot in opened.page.locator("#frontier .plot").all():
        boxes = [name.bounding_box() for name in plot.locator(".spot .name").all()]
        rectangles = [box for box in boxes if box is not None]
        assert len(rectangles) == 3
        for a, b in itertools.combinations(rectangles, 2):
            apart = (
                a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
                or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
            )  # fmt: skip
            assert apart
