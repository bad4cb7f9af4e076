"""What this host adds to a deployment."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import msgspec
from tests.diagnosis.fleet import pair, single

import twolane.models.needle
from twolane.diagnosis.host import (
    addresses,
    free_gib,
    listening_ports,
    model_trouble,
    with_host,
)
from twolane.diagnosis.preflight import check

NEEDLE = Path(twolane.models.needle.__file__).parent


def test_a_listening_port_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in listening_ports()


def test_unreadable_tables_are_no_trouble(tmp_path: Path) -> None:
    assert listening_ports((tmp_path / "none",)) == set()
    assert free_gib(tmp_path / "none") is None


def test_free_memory_is_read_in_gib(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       25165824 kB\nMemAvailable:   12582912 kB\n")
    assert free_gib(path) == 12.0


def test_a_whole_model_and_a_name_are_no_trouble() -> None:
    assert model_trouble(NEEDLE) == ""
    assert model_trouble(Path("Qwen/Qwen3-8B")) == ""


def test_broken_models_are_told_apart(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(NEEDLE, model)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    assert model_trouble(model) == f"{weights}: {len(whole) - 10} bytes of {len(whole)}"
    weights.write_bytes(b"x")
    assert model_trouble(model).endswith("its header cannot be read")
    weights.write_bytes(whole)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_trouble(model) == f"{model} lacks model-2.safetensors"
    (model / "config.json").write_text("{")
    assert "config.json" in model_trouble(model)


def test_a_deployment_learns_what_the_host_knows() -> None:
    base = single()
    engine = msgspec.structs.replace(base.engines[0], argv=["serve", str(NEEDLE)])
    known = with_host(msgspec.structs.replace(base, engines=[engine]))
    assert known.model_trouble == ""
    assert known.nixl is not None


def test_a_side_channel_on_an_address_of_another_host_is_known_before() -> None:
    def judged(host: str) -> set[str]:
        deployment = pair(penv={"VLLM_NIXL_SIDE_CHANNEL_HOST": host}, addresses=["10.0.0.1"])
        return {finding.rule for finding in check(deployment)}

    assert "127.0.0.1" in addresses()
    assert "PORT02" in judged("192.0.2.77")
    assert not {"PORT02"} & (judged("10.0.0.1") | judged("a-name") | judged("127.0.0.1"))
