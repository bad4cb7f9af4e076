"""The proxy's page names every option and every key of its file."""

from __future__ import annotations

from pathlib import Path

import click

from twolane.cli.serve import proxy
from twolane.proxy.configfile import File
from twolane.proxy.scrape import ALARMS

PAGE = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()


def test_every_option_key_and_alarm_is_told() -> None:
    options = [p.opts[0] for p in proxy.params if isinstance(p, click.Option)]
    told = [f"`{name}`" for name in (*options, *File.model_fields, *ALARMS)]
    lists = {"`prefill`", "`decode`", "`aggregated`"}  # "the same, lists"
    assert [name for name in told if name not in PAGE and name not in lists] == []
