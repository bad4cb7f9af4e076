"""Build a bundle: the packages that a node without a network lacks, locked, trimmed, in parts.

    recipe + what the node has -> lock -> wheels -> one tree -> trimmed -> tar.xz -> parts

What goes in is said by a recipe (locks/gpu.toml), what the node has by its own `pip list`. The
lock is kept until one of them changes. Nothing of the bundle is run here: wheels of another
Python than this one's are only unpacked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, cast

from packaging.requirements import InvalidRequirement, Requirement
from scripts.bundle_unpack import CHUNK, MANIFEST, BundleError, digest, say

ROOT = Path(__file__).resolve().parent.parent
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
NEVER = "python_version < '0'"  # an override with this marker takes a package out of a resolution


@dataclass(frozen=True)
class Recipe:
    """What a bundle holds; read from TOML."""

    require: tuple[str, ...]
    without: tuple[str, ...] = ()
    trim: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The node: its Python (`3.12`), its wheel platform, the versions of what it has.

    A version is empty where only the name is known.
    """

    python: str
    platform: str
    have: dict[str, str]


@dataclass(frozen=True)
class Packing:
    """How to pack: no part over `limit` bytes, `xz` with these arguments."""

    limit: int
    xz: tuple[str, ...] = ("-2", "-T2")


def canonical(name: str) -> str:
    """A package's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_recipe(path: Path, project: Path | None) -> Recipe:
    """The recipe, with the dependencies of `project` (a pyproject.toml) added to it."""
    table = tomllib.loads(path.read_text())
    environment = table.pop("environment", {})
    require = [*table.pop("require"), *(_dependencies(project) if project else ())]
    try:
        rest = {name: tuple(values) for name, values in table.items()}
        return Recipe(require=tuple(require), environment=environment, **rest)
    except TypeError as error:
        raise BundleError(f"{path}: {error}\n  remedy: see locks/gpu.toml for the keys") from None


def _dependencies(project: Path) -> list[str]:
    return cast(list[str], tomllib.loads(project.read_text())["project"]["dependencies"])


def read_have(text: str) -> dict[str, str]:
    """Name -> version of every line of a freeze file; `name`, `name==1` and `name @ url` are read.

    A version's local part is dropped: an index knows torch 2.11.0, not 2.11.0+cu130.
    """
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    found = (re.match(r"([\w.-]+)\s*(?:===?\s*([^\s+;]+))?", line) for line in lines if line)
    return {canonical(m[1]): m[2] or "" for m in found if m}


def parse_size(text: str) -> int:
    """Bytes of `60M`, `1.5G` or a plain number; units are powers of 1,024."""
    match = re.fullmatch(r"([\d.]+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not (size := int(float(match[1]) * UNITS[match[2].upper()])):
        raise BundleError(f"--part-size {text}: not a size\n  remedy: say 60M, for example")
    return size


def platforms(newest: str) -> list[str]:
    """Every manylinux tag that a node of glibc `newest` takes; pip matches tags exactly."""
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", newest)
    if not match:
        raise BundleError(
            f"--platform {newest}: not a tag\n  remedy: say manylinux_2_35_x86_64 for glibc 2.35"
        )
    minor, machine = int(match[1]), match[2]
    old = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    tags = [f"manylinux_2_{n}_{machine}" for n in range(minor, 4, -1)]
    return tags + [f"{name}_{machine}" for n, name in old.items() if n <= minor]


def inputs_digest(recipe: Recipe, target: Target) -> str:
    """What a lock depends on; a lock made of other inputs is made again."""
    facts = [sorted(recipe.require), sorted(recipe.without), target.python, target.platform]
    text = json.dumps([*facts, sorted(target.have.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def overrides(recipe: Recipe, target: Target) -> str:
    """Takes what the node has, and what the recipe does without, out of the resolution.

    So neither is downloaded, nor anything that only they would need; `conflicts` then says
    where the node's own version is not the one a package asks for.
    """
    names = {*target.have, *map(canonical, recipe.without)}
    return "".join(f"{name} ; {NEVER}\n" for name in sorted(names - _pinned(recipe)))


def _pinned(recipe: Recipe) -> set[str]:
    """What the recipe asks for in an exact version travels whatever the node has."""
    asked = (Requirement(text) for text in recipe.require)
    return {canonical(r.name) for r in asked if any(s.operator == "==" for s in r.specifier)}


def make_lock(recipe: Recipe, target: Target, lock: Path, work: Path) -> None:
    """Resolve for the node, with hashes, unless `lock` was made of these very inputs."""
    mark = f"# inputs {inputs_digest(recipe, target)}\n"
    if lock.is_file() and lock.read_text().startswith(mark):
        say(f"{lock} stands")
        return
    (work / "in.txt").write_text("\n".join(recipe.require) + "\n")
    (work / "overrides.txt").write_text(overrides(recipe, target))
    machine = "_".join(target.platform.split("_")[3:])
    command = [_tool("uv", "pip install uv"), "pip", "compile", "-q", str(work / "in.txt")]
    command += ["--override", str(work / "overrides.txt"), "-o", str(work / "lock.txt")]
    command += ["--python-version", target.python, "--only-binary", ":all:", "--generate-hashes"]
    command += ["--python-platform", f"{machine}-{'_'.join(target.platform.split('_')[:3])}"]
    command += ["--no-annotate", "--no-header", "--no-emit-index-url"]
    _call([*command, "--no-emit-find-links"], "change the recipe, or reach the package index")
    lock.write_text(mark + (work / "lock.txt").read_text())


def _tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if not found:
        raise BundleError(f"{name} is not there\n  remedy: {remedy}")
    return found


def _call(command: Sequence[str], remedy: str) -> None:
    if code := subprocess.run(command, check=False).returncode:
        raise BundleError(f"{' '.join(command[:4])} ... ended with {code}\n  remedy: {remedy}")


def _pip(verb: str, target: Target, *rest: str) -> None:
    """pip, made to think of the node's Python and platform instead of its own."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", verb, "-q", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
    command += [part for tag in platforms(target.platform) for part in ("--platform", tag)]
    _call([*command, *rest], "see what pip said above")


def download(lock: Path, target: Target, wheels: Path) -> None:
    _pip("download", target, "--require-hashes", "-r", str(lock), "-d", str(wheels))
    wanted = {name for name, _ in locked(lock)}
    for wheel in wheels.glob("*.whl"):  # a wheel of an earlier lock
        if canonical(wheel.name.split("-")[0]) not in wanted:
            wheel.unlink()


def locked(lock: Path) -> list[tuple[str, str]]:
    """(name, version) of every package in a lock."""
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE)
    return [(canonical(name), version) for name, version in found]


def install(wheels: Iterable[Path], target: Target, site: Path) -> None:
    """Unpack the wheels into one folder, with their metadata: plugins and versions need it."""
    shutil.rmtree(site, ignore_errors=True)
    names = [str(w) for w in sorted(wheels)]
    _pip("install", target, "--no-index", "--no-compile", "--target", str(site), *names)
    shutil.rmtree(site / "bin", ignore_errors=True)  # their first line names this machine's Python


def conflicts(site: Path, target: Target) -> list[str]:
    """Where a package asks for another version than the node has; such may still work."""
    said = []
    for path in sorted(site.glob("*.dist-info/METADATA")):
        head = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        for text in head.get_all("Requires-Dist", []):
            if (need := _needed(text, target)) and not _satisfied(need, target):
                said.append(f"{head['Name']} wants {need}, the node has {_version(need, target)}")
    return said


def _needed(text: str, target: Target) -> Requirement | None:
    try:
        need = Requirement(text)
    except InvalidRequirement:
        return None
    seen = {"python_version": target.python, "extra": "", "sys_platform": "linux"}
    return need if need.marker is None or need.marker.evaluate(seen) else None


def _version(need: Requirement, target: Target) -> str:
    return target.have.get(canonical(need.name), "")


def _satisfied(need: Requirement, target: Target) -> bool:
    version = _version(need, target)
    return not version or need.specifier.contains(version, prereleases=True)


def trim(site: Path, patterns: Sequence[str]) -> int:
    """Remove what the recipe says is not needed; returns the bytes saved.

    Raises BundleError on a pattern that matches nothing: it would hide a changed wheel.
    """
    saved = 0
    for pattern in patterns:
        found = list(site.glob(pattern))
        if not found:
            raise BundleError(f"trim {pattern}: nothing is there\n  remedy: correct the recipe")
        saved += sum(_remove(path) for path in found)
    return saved


def _remove(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    size = sum(p.stat().st_size for p in files)
    if path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path)
    return size


def pack(site: Path, archive: Path, packing: Packing) -> int:
    """Write `site` as one tar.xz, the same bytes for the same tree; returns the files in it."""
    files = sorted(p for p in site.rglob("*") if not p.is_dir())
    xz = [_tool("xz", "install xz-utils"), *packing.xz]
    with archive.open("wb") as out, subprocess.Popen(xz, stdin=subprocess.PIPE, stdout=out) as run:
        with tarfile.open(fileobj=run.stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path in files:
                tar.add(path, str(path.relative_to(site)), recursive=False, filter=_plain)
        cast(IO[bytes], run.stdin).close()
    if run.returncode:
        raise BundleError(f"xz ended with {run.returncode}\n  remedy: see what it said above")
    return len(files)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info


def split(archive: Path, out: Path, limit: int) -> list[dict[str, object]]:
    """Cut into the fewest parts under `limit` bytes, all of about one size; returns their rows."""
    for old in out.glob("part-*"):
        old.unlink()
    total = archive.stat().st_size
    size = math.ceil(total / math.ceil(total / limit))
    with archive.open("rb") as source:
        return [_part(source, out / f"part-{i}", size) for i in range(math.ceil(total / size))]


def _part(source: IO[bytes], path: Path, size: int) -> dict[str, object]:
    with path.open("wb") as sink:
        while size and (data := source.read(min(size, CHUNK))):
            size -= sink.write(data)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest(path)}


def assemble(
    recipe: Recipe, target: Target, wheels: Path, out: Path, packing: Packing
) -> dict[str, object]:
    """From a folder of wheels to parts, a manifest and unpack.py in `out`; returns the manifest."""
    work = wheels.parent
    site, archive = work / "site", work / "bundle.tar.xz"
    install(wheels.glob("*.whl"), target, site)
    for line in conflicts(site, target):
        say(line)
    say(f"trimmed {trim(site, recipe.trim) / 1e6:.0f} MB")
    files = pack(site, archive, packing)
    manifest = {
        "python": target.python,
        "platform": target.platform,
        "files": files,
        "parts": split(archive, out, packing.limit),
        "packages": _packages(site),
        "without": sorted(recipe.without),
        "check": recipe.check,
        "environment": recipe.environment,
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.copy(ROOT / "scripts/bundle_unpack.py", out / "unpack.py")
    return manifest


def _packages(site: Path) -> dict[str, str]:
    names = (p.name.removesuffix(".dist-info") for p in sorted(site.glob("*.dist-info")))
    return {canonical(n.split("-")[0]): n.split("-")[1] for n in names}


def build(args: argparse.Namespace) -> None:
    packing = Packing(parse_size(args.part_size), (f"-{args.level}", f"-T{args.threads}"))
    recipe = read_recipe(args.recipe, args.project)
    target = Target(args.python, args.platform, read_have(args.have.read_text()))
    work: Path = args.work or args.out.with_name(args.out.name + ".work")
    for folder in (args.out, work / "wheels"):
        folder.mkdir(parents=True, exist_ok=True)
    make_lock(recipe, target, args.lock, work)
    say(f"{len(locked(args.lock))} packages to carry, {len(target.have)} are there")
    download(args.lock, target, work / "wheels")
    made = assemble(recipe, target, work / "wheels", args.out, packing)
    for part in cast(list[dict[str, int]], made["parts"]):
        say(f"{args.out / str(part['name'])}  {part['bytes'] / 2**20:.1f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-bundle build", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--have", type=Path, required=True, help="the node's pip list --format=freeze")
    add("--out", type=Path, required=True, help="folder for the parts")
    add("--python", default="3.12", help="the node's Python (3.12)")
    add("--platform", default="manylinux_2_35_x86_64", help="its newest wheel tag")
    add("--part-size", default="60M", help="no part is larger (60M)")
    add("--recipe", type=Path, default=ROOT / "locks/gpu.toml")
    add("--project", type=Path, default=ROOT / "pyproject.toml", help="its dependencies go too")
    add("--lock", type=Path, default=ROOT / "locks/gpu.txt", help="kept while inputs stand")
    add("--work", type=Path, help="wheels and tree, 3 GB (OUT.work)")
    add("--level", type=int, default=2, help="xz level (2)")
    add("--threads", type=int, default=2, help="xz threads (2)")
    try:
        build(parser.parse_args())
    except BundleError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
