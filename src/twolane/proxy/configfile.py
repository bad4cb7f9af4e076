"""`--config FILE`: engines and limits in YAML, read again on SIGHUP.

    prefill: [p0=http://127.0.0.1:8100*2, p1=http://127.0.0.1:8101]
    decode: [http://127.0.0.1:8200]
    backlog: 200000

Keys are the command line's options, with underscores. An option that is given there wins, also at a
reload; where one listens, and how many workers do, is not in the file, since it cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from twolane.config.source import Shape, read
from twolane.errors import QuestionError
from twolane.proxy.config import Connector, ProxyConfig, config_from_urls

Share = Annotated[float, Field(ge=0, le=1)]
ENGINES = ("prefill", "decode", "aggregated")
# The file's words for fields of ProxyConfig that have their unit in their name.
FIELDS = {
    "split_from": "split_from_tokens",
    "backlog": "backlog_tokens",
    "queue": "queue_limit",
    "queue_timeout": "queue_timeout_s",
    "scrape": "scrape_every_s",
}


class File(Shape):
    """What may stand in the file."""

    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    aggregated: tuple[str, ...] = ()
    model: str | None = None
    api_keys: tuple[str, ...] | None = None
    connector: Connector | None = None
    tokenise_once: bool | None = None
    split_from: Annotated[int, Field(ge=0)] | None = None
    backlog: Annotated[int, Field(ge=1)] | None = None
    decode_limit: Annotated[int, Field(ge=1)] | None = None
    kv_limit: Annotated[float, Field(gt=0, le=1)] | None = None
    queue: Annotated[int, Field(ge=0)] | None = None
    queue_timeout: Annotated[float, Field(ge=0)] | None = None
    retry_share: Share | None = None
    fallback_share: Share | None = None
    scrape: Annotated[float, Field(ge=0)] | None = None


def configured(
    path: Path | None,
    engines: Mapping[str, tuple[str, ...]],
    model: str | None,
    limits: Mapping[str, Any],
    **where: Any,
) -> ProxyConfig:
    """The configuration of the file, if there is one, and of the command line, which wins.

    `engines` are URLs by role, `limits` fields of ProxyConfig, `where` those of a process: host,
    port, ledger, workers. Raises QuestionError.
    """
    told: dict[str, Any] = {}
    if path is not None:
        if path.exists() and not path.is_file():
            raise QuestionError(
                "not a file, so that it cannot be read again", place=str(path), remedy="name a file"
            )
        file = read(path).shaped(File)
        if any(engines.values()):
            raise QuestionError(
                "engines are given twice: in the file and on the command line",
                place=str(path),
                remedy="name them in one of the two",
            )
        engines = {role: getattr(file, role) for role in ENGINES}
        model = model or file.model
        told = file.model_dump(exclude_none=True, exclude={*ENGINES, "model"})
    named = {FIELDS.get(name, name): value for name, value in told.items()}
    try:
        return _config(engines, model, named | dict(limits) | where)
    except QuestionError as error:
        if path is None:
            raise
        at = f"{path}: {error.place.removeprefix('--')}" if error.place else str(path)
        raise QuestionError(error.what, place=at, remedy=error.remedy) from None


def _config(
    engines: Mapping[str, tuple[str, ...]], model: str | None, told: dict[str, Any]
) -> ProxyConfig:
    return config_from_urls(
        *(engines[role] for role in ENGINES),
        model=model,
        host=told.pop("host"),
        port=told.pop("port"),
        ledger=told.pop("ledger"),
        limits=told,
    )
