from __future__ import annotations

import pytest

from twolane.errors import QuestionError
from twolane.proxy.config import config_from_urls, upstream

A, B = "http://127.0.0.1:8100", "http://127.0.0.1:8200"


def test_names_are_given_or_by_position() -> None:
    config = config_from_urls((A, "pre=" + B), (f"dec={A}/",))
    assert [u.name for u in config.upstreams] == ["prefill-0", "pre", "dec"]
    assert [(u.host, u.port) for u in config.decode] == [("127.0.0.1", 8100)]


def test_ipv6_and_the_default_port() -> None:
    one = upstream("decode", 0, "http://[::1]")
    assert (one.host, one.port) == ("::1", 80)


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8100", "https://a", "http://", "http://a:x", "http://a/v1", "http://a?b",
        "http://a\0b:1", "http://a b", "http://a..b:1", "http://ünï:1", f"http://{'a' * 64}:1",
        "http://a:0", "http://u:p@a:1", "http://[::1", "http://a:99999",
    ],
)  # fmt: skip
def test_what_is_no_engine_address(url: str) -> None:
    with pytest.raises(QuestionError, match="http://HOST:PORT"):
        config_from_urls(aggregated=(url,))


@pytest.mark.parametrize(
    ("prefill", "decode", "remedy"),
    [((A,), (), "--decode"), ((), (A,), "--prefill"), ((), (), "--aggregated")],
)
def test_half_a_pair_and_nothing(
    prefill: tuple[str, ...], decode: tuple[str, ...], remedy: str
) -> None:
    with pytest.raises(QuestionError, match=remedy):
        config_from_urls(prefill, decode)


def test_one_name_for_two_engines() -> None:
    with pytest.raises(QuestionError, match="one name"):
        config_from_urls(("x=" + A,), ("x=" + B,))


def test_a_url_may_carry_a_weight() -> None:
    one = upstream("decode", 0, "d0=http://127.0.0.1:8200*2.5")
    assert (one.name, one.port, one.weight) == ("d0", 8200, 2.5)
    assert upstream("decode", 0, "http://127.0.0.1:8200").weight == 1.0


@pytest.mark.parametrize("weight", ["", "0", "-1", "x", "nan", "inf"])
def test_what_is_no_weight_is_refused(weight: str) -> None:
    with pytest.raises(QuestionError, match="is no weight"):
        upstream("prefill", 0, f"http://127.0.0.1:8100*{weight}")
