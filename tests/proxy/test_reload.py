"""A configuration in a file, and read again while streams run."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.proxy.rig import PATIENCE_S, Rig, completion, expected, rig, soon

from twolane.errors import QuestionError
from twolane.proxy.config import ProxyConfig, Upstream
from twolane.proxy.configfile import configured
from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fault_engine import FaultEngine
from twolane.proxy.fleet import Engine
from twolane.proxy.scrape import Reading
from twolane.proxy.server import _Reloading
from twolane.proxy.service import Proxy

NO_ENGINES: dict[str, tuple[str, ...]] = {"prefill": (), "decode": (), "aggregated": ()}
WHERE = {"host": "127.0.0.1", "port": 0, "ledger": None, "workers": 1}


def read(file: Path, text: str, **limits: object) -> ProxyConfig:
    file.write_text(text)
    return configured(file, NO_ENGINES, None, limits, **WHERE)


def test_the_file_names_engines_and_limits_and_the_command_line_wins(tmp_path: Path) -> None:
    text = "prefill: [p=http://a:1*2]\ndecode: [http://b:2]\nbacklog: 9\nqueue: 5\n"
    config = read(tmp_path / "c.yaml", text, backlog_tokens=7)
    assert [(u.name, u.weight) for u in config.upstreams] == [("p", 2.0), ("decode-0", 1.0)]
    assert (config.backlog_tokens, config.queue_limit) == (7, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aggregated: [http://a]\nbaklog: 3\n", "did you mean 'backlog'"),
        ("aggregated: [http://a]\nbacklog: 0\n", "c.yaml:2"),
        ("aggregated: [https://a]\n", "http://HOST:PORT"),
        ("prefill: [http://a]\n", "without a decode engine"),
        ("", "c.yaml"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(QuestionError, match=said):
        read(tmp_path / "c.yaml", text)


def test_engines_stand_in_one_place(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("aggregated: [http://a]\n")
    with pytest.raises(QuestionError, match="twice"):
        configured(file, NO_ENGINES | {"aggregated": ("http://b",)}, None, {}, **WHERE)


def test_a_worker_has_its_share_of_the_limits() -> None:
    engine = (Upstream("aggregated", "a", "h", 1),)
    one = ProxyConfig(aggregated=engine, workers=4, backlog_tokens=100, decode_limit=2).for_worker()
    assert (one.backlog_tokens, one.decode_limit, one.queue_limit) == (25, 1, 256)


def with_decode(r: Rig, *engines: FaultEngine) -> ProxyConfig:
    named = tuple(Upstream("decode", f"d{e.port}", "127.0.0.1", e.port) for e in engines)
    return replace(r.proxy.config, decode=named)


async def test_a_reload_moves_new_requests_and_loses_no_stream() -> None:
    async with rig() as r, FaultEngine("decode", r.store) as other:
        gate = asyncio.Event()
        r.d.behaviour = Behaviour(after_first=gate)
        before = await r.call(completion("before", stream=True))
        await before.first()
        await r.proxy.reload(with_decode(r, other))
        assert (await r.ask(completion("after"))).text == expected("after")
        assert [s.body["prompt"] for s in other.asked] == ["after"]
        gate.set()
        got = await before.answer()
        assert (got.complete, got.text) == (True, expected("before"))
        assert [e.name for e in r.proxy.fleet.engines] == ["prefill-0", f"d{other.port}"]


async def test_a_reload_keeps_what_is_known_of_an_engine_and_gives_it_its_weight() -> None:
    async with rig() as r:
        engine = r.proxy.fleet.of("prefill")[0]
        heavier = replace(r.proxy.config.prefill[0], weight=3.0)
        await r.proxy.reload(replace(r.proxy.config, prefill=(heavier,), queue_limit=7))
        assert r.proxy.fleet.of("prefill")[0] is engine
        assert (engine.weight, r.proxy.config.queue_limit) == (3.0, 7)
        assert len(r.p.asked) == 0


async def test_who_waits_is_let_in_by_a_reload_with_more_room() -> None:
    async with rig(decode_limit=1) as r:
        gate = asyncio.Event()
        r.d.behaviour = Behaviour(first_byte=gate)
        r.d.began.clear()
        calls = [await r.call(completion(p)) for p in ("one", "two")]
        await soon(r.d.began)
        while not r.proxy.admission.waiting:
            await asyncio.sleep(0)
        await r.proxy.reload(replace(r.proxy.config, decode_limit=2))
        while r.d.in_flight < 2:
            await asyncio.sleep(0)
        gate.set()
        assert [(await c.answer()).text for c in calls] == [expected("one"), expected("two")]


@pytest.mark.parametrize("url", ['"http://a\\0b:1"', "http://a..b:1", "http://ünï:1"])
def test_a_host_that_no_engine_can_have_is_refused_before_it_takes_over(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(QuestionError, match=r"http://HOST:PORT|no command line can") as caught:
        read(tmp_path / "c.yaml", f"aggregated: [{url}]\n")
    assert "c.yaml" in caught.value.place


async def test_what_cannot_be_read_at_a_signal_leaves_the_old_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "c.yaml"

    def reload() -> ProxyConfig:
        return configured(file, NO_ENGINES, None, {}, **WHERE)

    def defect() -> ProxyConfig:
        raise RecursionError("deep")

    async with rig() as r:
        before = r.proxy.config
        reloading = _Reloading(r.proxy, reload)
        try:
            for spoil in (_gone, _binary, _a_folder):
                spoil(file)
                await reloading._read(reload)
            await reloading._read(defect)
        finally:
            reloading.forget()
        assert r.proxy.config is before
        assert (await r.ask(completion("on"))).text == expected("on")
    told = [record.getMessage() for record in caplog.records if "not reloaded" in record.message]
    assert len(told) == 4
    assert all("the old configuration stays" in one for one in told)
    assert all(str(file) in one for one in told[:3])


async def test_a_signal_during_a_reload_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with rig() as r:
        warming, warm = asyncio.Event(), asyncio.Event()

        async def welcome(engines: list[Engine]) -> None:
            warming.set()
            await warm.wait()

        monkeypatch.setattr(r.proxy, "_welcome", welcome)
        asked = [r.proxy.config]
        read: list[ProxyConfig] = []

        def reload() -> ProxyConfig:
            read.append(asked[-1])
            return asked[-1]

        reloading = _Reloading(r.proxy, reload)
        try:
            reloading._begin()
            await soon(warming)
            asked.append(replace(asked[0], api_keys=("secret",)))
            reloading._begin()
            reloading._begin()
            warm.set()
            assert reloading._task is not None
            await reloading._task
        finally:
            reloading.forget()
        assert read == asked  # two signals, one reading more
        assert r.proxy.config.api_keys == ("secret",)
        assert (await r.ask(completion())).status == 401
    assert "when the present reload is over" in caplog.text


async def test_a_defect_in_a_reload_does_not_lose_the_signal_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as r:
        asked: list[ProxyConfig] = []

        async def defect(config: ProxyConfig) -> None:
            asked.append(config)
            if len(asked) == 1:
                reloading._begin()
                raise KeyError("a defect")

        monkeypatch.setattr(r.proxy, "reload", defect)
        reloading = _Reloading(r.proxy, lambda: r.proxy.config)
        try:
            reloading._begin()
            assert reloading._task is not None
            await reloading._task
        finally:
            reloading.forget()
        assert len(asked) == 2


async def test_a_reload_at_the_start_waits_for_it() -> None:
    """Else every engine would be watched twice, and the first watchers by nobody."""
    async with FaultEngine("aggregated") as engine:
        config = ProxyConfig(
            aggregated=(Upstream("aggregated", "a", "127.0.0.1", engine.port),), scrape_every_s=3600
        )
        proxy = Proxy(config)
        before = asyncio.all_tasks()
        await asyncio.gather(proxy.start(), proxy.reload(config))
        try:
            assert len(asyncio.all_tasks() - before) == 2  # health and metrics
        finally:
            await proxy.close()


async def test_a_reload_turns_the_scraping_on_and_off_and_changes_how_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scraped = asyncio.Event()

    async def scrape(engine: Engine, connect_s: float) -> None:
        engine.reading = Reading()
        scraped.set()

    monkeypatch.setattr(Engine, "scrape", scrape)
    async with rig(0, 0, 1, scrape_every_s=0.0) as r:
        (engine,) = r.proxy.fleet.engines
        for every_s in (3600.0, 1800.0):
            scraped.clear()
            await r.proxy.reload(replace(r.proxy.config, scrape_every_s=every_s))
            await soon(scraped)
        await r.proxy.reload(replace(r.proxy.config, scrape_every_s=0.0))
        async with asyncio.timeout(PATIENCE_S):
            while engine.reading is not None:  # too old to go by
                await asyncio.sleep(0)


def _gone(file: Path) -> None:
    file.unlink(missing_ok=True)


def _binary(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 8)


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
