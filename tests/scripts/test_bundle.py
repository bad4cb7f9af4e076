"""The bundle, made of tiny wheels: what is carried, what is cut, and what a bad copy says."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import bundle_build as build
from scripts import bundle_unpack as unpack

HERE = "{}.{}".format(*sys.version_info[:2])
TARGET = build.Target(HERE, "manylinux_2_35_x86_64", {"torch": "2.11.0", "numpy": ""})


def wheel(folder: Path, name: str, files: dict[str, str], *requires: str) -> Path:
    """A pure wheel `name` 1.0 that holds `files`."""
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {r}\n" for r in requires)
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for at, text in files.items():
            archive.writestr(at, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{at},,\n" for at in files))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of 4 KiB at most, of an engine with a kernel that the node does not need."""
    base = tmp_path_factory.mktemp("bundle")
    wheels, out = base / "work/wheels", base / "out"
    wheels.mkdir(parents=True)
    out.mkdir()
    (out / "part-9").write_text("of an earlier build")
    noise = os.urandom(5000).hex()
    files = {
        "engine/__init__.py": "__version__ = '1.0'\nimport helper\n",
        "engine/weights.txt": noise,
        "engine/old_gpu/kernel.so": "x" * 1000,
    }
    wheel(wheels, "engine", files, "torch==2.9.0", "numpy>=2", 'gone; extra == "video"')
    wheel(wheels, "helper", {"helper/__init__.py": ""})
    recipe = build.Recipe(
        require=("engine==1.0",),
        trim=("engine/old_gpu",),
        check=("engine",),
        environment={"ENGINE_MODE": "a b"},
    )
    build.assemble(recipe, TARGET, wheels, out, build.Packing(4096, ("-2", "-T1")))
    return out


def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def test_parts_stay_under_the_limit_and_nothing_old_remains(bundle: Path) -> None:
    sizes = [p.stat().st_size for p in sorted(bundle.glob("part-*"))]
    assert len(sizes) == 2
    assert max(sizes) <= 4096
    assert max(sizes) - min(sizes) <= 1


def test_it_unpacks_trimmed_with_metadata_and_imports(bundle: Path, tmp_path: Path) -> None:
    dest = tmp_path / "site"
    run = subprocess.run(
        [sys.executable, bundle / "unpack.py", bundle, dest], capture_output=True, check=True
    )
    assert b"engine 1.0" in run.stdout
    assert (dest / "engine-1.0.dist-info/METADATA").is_file()
    assert not (dest / "engine/old_gpu").exists()


def test_its_variables_reach_a_shell(bundle: Path, tmp_path: Path) -> None:
    script = unpack.unpack(bundle, tmp_path / "site", check=False)
    command = f'PYTHONPATH=/before; . {script}; echo "$ENGINE_MODE|$PYTHONPATH"'
    said = subprocess.check_output(["bash", "-c", command], text=True)
    assert said == f"a b|{tmp_path / 'site'}:/before\n"


def test_it_unpacks_without_xz(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    unpack.unpack(bundle, tmp_path / "site")
    assert (tmp_path / "site/engine/weights.txt").stat().st_size == 10000


def test_a_second_unpack_only_checks(bundle: Path, tmp_path: Path) -> None:
    unpack.unpack(bundle, tmp_path / "site", check=False)
    (tmp_path / "site/mine").touch()
    unpack.unpack(bundle, tmp_path / "site", check=False)
    assert (tmp_path / "site/mine").exists()


def test_every_bad_part_is_named(bundle: Path, tmp_path: Path) -> None:
    folder = copy(bundle, tmp_path)
    (folder / "part-0").unlink()
    data = bytearray((folder / "part-1").read_bytes())
    data[7] ^= 1
    (folder / "part-1").write_bytes(data)
    with pytest.raises(unpack.BundleError, match=r"part-0 is missing; .*part-1 has another"):
        unpack.unpack(folder, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_short_part_is_named_with_its_size(bundle: Path, tmp_path: Path) -> None:
    folder = copy(bundle, tmp_path)
    (folder / "part-0").write_bytes(b"cut")
    with pytest.raises(unpack.BundleError, match="part-0 has 3 bytes, not"):
        unpack.unpack(folder, tmp_path / "site")


def test_a_folder_of_somebody_else_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "keep").touch()
    with pytest.raises(unpack.BundleError, match="is no bundle"):
        unpack.unpack(bundle, tmp_path)
    assert (tmp_path / "keep").exists()


def test_another_python_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder = copy(bundle, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"python": "2.7"}))
    with pytest.raises(unpack.BundleError, match=r"built for 2\.7"):
        unpack.unpack(folder, tmp_path / "site")


def test_a_package_that_does_not_import_fails(bundle: Path, tmp_path: Path) -> None:
    folder = copy(bundle, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"check": ["no_such"]}))
    with pytest.raises(unpack.BundleError, match="does not import"):
        unpack.unpack(folder, tmp_path / "site")


def test_the_same_tree_packs_to_the_same_bytes(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "a").mkdir(parents=True)
    (site / "a/b.py").write_text("1")
    packing = build.Packing(1 << 20, ("-2", "-T1"))
    build.pack(site, tmp_path / "one", packing)
    (site / "a/b.py").touch()
    build.pack(site, tmp_path / "two", packing)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_trim_that_finds_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(unpack.BundleError, match="trim moved"):
        build.trim(tmp_path, ["moved"])


def test_conflicts_tell_only_of_what_the_node_has(tmp_path: Path) -> None:
    made = wheel(
        tmp_path, "engine", {}, "torch==2.9.0", "numpy>=9", "absent==3", 'torch==1; extra == "x"'
    )
    build.install([made], TARGET, tmp_path / "site")
    assert build.conflicts(tmp_path / "site", TARGET) == [
        "engine wants torch==2.9.0, the node has 2.11.0"
    ]


def test_have_reads_what_pip_prints() -> None:
    text = "# a node\ntorch==2.11.0+cu130\nRuamel.Yaml==0.19\nnumpy\nours @ file:///x\n\n"
    assert build.read_have(text) == {
        "torch": "2.11.0",
        "ruamel-yaml": "0.19",
        "numpy": "",
        "ours": "",
    }


def test_the_lock_leaves_out_what_is_there_but_not_what_is_pinned() -> None:
    recipe = build.Recipe(require=("Torch==2.9", "numpy>=2"), without=("Flash_Infer",))
    names = [line.split()[0] for line in build.overrides(recipe, TARGET).splitlines()]
    assert names == ["flash-infer", "numpy"]


def test_a_lock_of_other_inputs_does_not_stand() -> None:
    recipe = build.Recipe(require=("a", "b"))
    same = build.Recipe(require=("b", "a"), trim=("x",))
    other = build.Target(HERE, TARGET.platform, TARGET.have | {"numpy": "2.5"})
    assert build.inputs_digest(recipe, TARGET) == build.inputs_digest(same, TARGET)
    assert build.inputs_digest(recipe, TARGET) != build.inputs_digest(recipe, other)


def test_a_lock_is_read_with_extras_and_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# inputs x\nFast_API[all]==1.0 \\\n    --hash=sha256:00\nb==2 ; sys == 'x'\n")
    assert build.locked(lock) == [("fast-api", "1.0"), ("b", "2")]


def test_the_recipe_of_this_repository_is_read() -> None:
    recipe = build.read_recipe(build.ROOT / "locks/gpu.toml", build.ROOT / "pyproject.toml")
    assert any(r.startswith("vllm==") for r in recipe.require)
    assert any(r.startswith("httptools") for r in recipe.require)
    assert recipe.environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"


def test_an_unknown_key_of_a_recipe_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('require = ["a"]\nwihtout = ["b"]\n')
    with pytest.raises(unpack.BundleError, match="wihtout"):
        build.read_recipe(tmp_path / "r.toml", None)


def test_platform_tags_go_down_to_the_oldest() -> None:
    tags = build.platforms("manylinux_2_28_x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(tags)
    assert "manylinux_2_35_x86_64" not in tags


@pytest.mark.parametrize("text", ["", "0", "60X", "many"])
def test_no_size(text: str) -> None:
    with pytest.raises(unpack.BundleError, match="part-size"):
        build.parse_size(text)


def test_sizes() -> None:
    assert build.parse_size("60M") == 60 << 20
    assert build.parse_size("1.5GiB") == 3 << 29


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 9))
def test_joined_parts_read_as_one_file(parts: list[bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(i)) for i in range(len(parts))]
        for path, data in zip(paths, parts, strict=True):
            path.write_bytes(data)
        joined = unpack.Joined(paths)
        assert b"".join(iter(lambda: joined.read(size), b"")) == b"".join(parts)


def test_lzma_reads_what_xz_wrote_in_blocks(tmp_path: Path) -> None:
    data = os.urandom(64)
    (tmp_path / "part-0").write_bytes(lzma.compress(data))
    with unpack.decoded([tmp_path / "part-0"]) as stream:
        assert stream.read() == data
