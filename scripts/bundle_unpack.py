"""Unpack a bundle of Python packages on a node without a network, and prove that it imports.

Stands alone on the standard library, because a copy of it travels inside the bundle. `xz`, where
the node has it, only makes it faster: bundles are cut into blocks that it decodes on all cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

MANIFEST = "manifest.json"
STAMP = ".bundle"
CHUNK = 1 << 20

CHECK = """
import importlib, sys, time
for name in sys.argv[1:]:
    begin = time.monotonic()
    module = importlib.import_module(name)
    print(f"  {name} {getattr(module, '__version__', '')} {time.monotonic() - begin:.1f} s")
"""


class BundleError(Exception):
    """Names the place, the value and the remedy."""


def say(text: str) -> None:
    sys.stderr.write(f"[bundle] {text}\n")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise BundleError(f"{path} is missing\n  remedy: copy it from where the bundle was built")
    return cast(dict[str, Any], json.loads(path.read_text()))


def verify(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """The parts in order; raises BundleError that names every part missing or altered."""
    faults = [f for part in manifest["parts"] if (f := _fault(folder, part))]
    if faults:
        raise BundleError("; ".join(faults) + "\n  remedy: copy these parts again")
    return [folder / part["name"] for part in manifest["parts"]]


def _fault(folder: Path, part: dict[str, Any]) -> str:
    path = folder / part["name"]
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size != part["bytes"]:
        return f"{path} has {path.stat().st_size} bytes, not {part['bytes']}"
    return "" if digest(path) == part["sha256"] else f"{path} has another checksum"


def check_python(wanted: str) -> None:
    here = "{}.{}".format(*sys.version_info[:2])
    if here != wanted:
        raise BundleError(
            f"{sys.executable} is Python {here}, the bundle was built for {wanted}\n"
            f"  remedy: run this with python{wanted}, or build with --python {here}"
        )


class Joined:
    """The parts read as one file, which is all that a decoder asks for."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._rest = list(parts)
        self._file: IO[bytes] | None = None

    def read(self, size: int = CHUNK) -> bytes:
        while self._file or self._rest:
            if self._file is None:
                self._file = self._rest.pop(0).open("rb")
            if data := self._file.read(size):
                return data
            self._file.close()
            self._file = None
        return b""


@contextmanager
def decoded(parts: Sequence[Path]) -> Iterator[IO[bytes]]:
    """The archive behind the parts, as a stream; by `xz` on all cores, or else by Python."""
    if xz := shutil.which("xz"):
        with subprocess.Popen([xz, "-dcT0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
            assert run.stdin
            assert run.stdout
            feeder = threading.Thread(target=_feed, args=(parts, run.stdin), daemon=True)
            feeder.start()
            yield run.stdout
            feeder.join()
        if run.returncode:
            raise BundleError(f"xz ended with {run.returncode}\n  remedy: see what it said above")
    else:
        with lzma.open(cast(IO[bytes], Joined(parts))) as stream:
            yield cast(IO[bytes], stream)


def _feed(parts: Sequence[Path], sink: IO[bytes]) -> None:
    joined = Joined(parts)
    try:
        while data := joined.read():
            sink.write(data)
        sink.close()
    except BrokenPipeError:
        pass  # xz died; its exit status tells


def extract(parts: Sequence[Path], dest: Path) -> None:
    """Unpack beside `dest`, then rename, so that a cut leaves nothing that looks finished."""
    partial = dest.with_name(dest.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with decoded(parts) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(partial, filter="data")
        while stream.read(CHUNK):
            pass  # the padding after the archive's end: xz must reach its own end
    partial.rename(dest)


def environment(manifest: dict[str, Any], dest: Path) -> dict[str, str]:
    """The variables a process needs to see the bundle; the node's PYTHONPATH comes after it."""
    path = os.pathsep.join(filter(None, [str(dest), os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, **manifest["environment"]}


def write_env(manifest: dict[str, Any], dest: Path) -> Path:
    lines = [f"export {k}={shlex.quote(v)}\n" for k, v in manifest["environment"].items()]
    lines.append(f'export PYTHONPATH={shlex.quote(str(dest))}"${{PYTHONPATH:+:$PYTHONPATH}}"\n')
    (dest / "env.sh").write_text("".join(lines))
    return dest / "env.sh"


def check_imports(manifest: dict[str, Any], dest: Path) -> None:
    """Import the recipe's modules in a fresh interpreter; raises BundleError if one fails."""
    run = subprocess.run(
        [sys.executable, "-c", CHECK, *manifest["check"]],
        env=os.environ | environment(manifest, dest),
        check=False,
    )
    if run.returncode:
        raise BundleError(
            "a module does not import (see above)\n  remedy: rebuild with the missing package "
            "taken off the --have list, or off the recipe's `without` or `trim`"
        )


def unpack(folder: Path, dest: Path, *, check: bool = True) -> Path:
    """Verify, unpack and try a bundle; returns the file of variables to source.

    A `dest` that already holds this very bundle is only checked again.
    """
    manifest = read_manifest(folder)
    check_python(manifest["python"])
    stamp, mark = dest / STAMP, digest(folder / MANIFEST)
    if not stamp.exists() and dest.exists():
        raise BundleError(f"{dest} exists and is no bundle\n  remedy: name a folder that does not")
    if not stamp.exists() or stamp.read_text() != mark:
        begin = time.monotonic()
        parts = verify(folder, manifest)
        shutil.rmtree(dest, ignore_errors=True)
        extract(parts, dest)
        stamp.write_text(mark)
        say(f"unpacked {manifest['files']} files in {time.monotonic() - begin:.1f} s")
    script = write_env(manifest, dest)
    if check:
        check_imports(manifest, dest)
    return script


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-bundle unpack", description=unpack.__doc__)
    parser.add_argument("folder", type=Path, help="where the parts and the manifest lie")
    parser.add_argument("dest", type=Path, help="a folder to make")
    parser.add_argument("--no-check", action="store_true", help="do not import anything")
    args = parser.parse_args()
    try:
        script = unpack(args.folder, args.dest.absolute(), check=not args.no_check)
    except BundleError as error:
        say(str(error))
        return 1
    say(f"ready; now: . {script}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
