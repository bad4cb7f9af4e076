"""What this host adds to a deployment."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import msgspec
from tests.diagnosis.fleet import single

import twolane.models.needle
from twolane.diagnosis.host import listening_ports, model_trouble, with_host

NEEDLE = Path(twolane.models.needle.__file__).parent


def test_a_listening_port_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in listening_ports()


def test_unreadable_tables_are_no_trouble(tmp_path: Path) -> None:
    assert listening_ports((tmp_path / "none",)) == set()


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
