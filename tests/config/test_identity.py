"""A model is the same wherever its folder lies, and another one where its files differ."""

from __future__ import annotations

from pathlib import Path

from twolane.config import identity


def model(folder: Path, *, config: str = "{}", weights: int = 8) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(b"w" * weights)
    return str(folder)


def test_the_path_does_not_matter(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one"), model(tmp_path / "other")
    assert identity.of_model(one) == identity.of_model(other)


def test_config_and_weights_do(tmp_path: Path) -> None:
    one = identity.of_model(model(tmp_path / "one"))
    assert one != identity.of_model(model(tmp_path / "config", config='{"a": 1}'))
    assert one != identity.of_model(model(tmp_path / "weights", weights=9))


def test_dummy_weights_do_not(tmp_path: Path) -> None:
    one, other = model(tmp_path / "one"), model(tmp_path / "other", weights=9)
    assert identity.of_model(one, weights=False) == identity.of_model(other, weights=False)
    assert identity.has_dummy_weights(["--max-num-seqs", "8", "--load_format=dummy"])
    assert not identity.has_dummy_weights(["--load-format", "auto"])


def test_a_hub_name_is_itself() -> None:
    assert identity.of_model("Qwen/Qwen3-8B") == "hub:Qwen/Qwen3-8B"
