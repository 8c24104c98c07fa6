"""`bench-prep cache`: where the cache is, how large its parts are, and its removal."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

from filelock import Timeout
from rich.console import Console
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from bench_prep.errors import UsageError
from bench_prep.provenance.cachedir import MADE, cache_dir, made
from bench_prep.provenance.locks import BUILD, INSTALL, OFFICIAL, USE, in_use_by, locked_at_once
from bench_prep.provenance.official import edited_files

_PARTS = {
    "downloads": "source distributions and wheels as fetched",
    "official": "official worktrees, to edit",
    "wheels": "built wheels with their build logs",
    "logs": "logs of failed builds and of runs",
    "envs": "environments of compared worktrees",
    "models": "served models with random weights: their configurations",
}
_NAMED = 3
#: A lock that is removed can be held twice.
_LOCKS = re.compile(r"(build|install|official|use)[.\d]*\.(lock|holder|tmp)")


def show(console: Console) -> None:
    """The place of the cache, the size of each part in MB, and each environment."""
    folder = cache_dir()
    console.print(f"cache    {folder}", highlight=False, soft_wrap=True, markup=False)
    table = Table()
    table.add_column("part")
    table.add_column("MB", justify="right")
    table.add_column("files", justify="right")
    table.add_column("what")
    sizes = {name: _size(folder / name) for name in _PARTS}
    known = {*_PARTS}
    rest = [_size(path) for path in folder.iterdir() if path.name not in known]
    sizes["other"] = (sum(size for size, _ in rest), sum(count for _, count in rest))
    for name, (size, count) in sizes.items():
        what = _PARTS.get(
            name, "locks, what an interrupted build left, and what is not bench-prep's"
        )
        table.add_row(name, _mb(size), str(count), what)
    table.add_section()
    total, count = (sum(numbers) for numbers in zip(*sizes.values(), strict=True))
    table.add_row("all", _mb(total), str(count), "")
    console.print(table)
    for used, place in sorted(_environments(), reverse=True):
        when = datetime.fromtimestamp(used).isoformat(" ", "minutes")
        console.print(
            f"env      of the wheel {place.name}: {_mb(_size(place)[0])} MB, last used {when}",
            highlight=False, soft_wrap=True, markup=False,
        )  # fmt: skip


def _environments() -> Iterator[tuple[float, Path]]:
    """When each finished environment was last used; one may vanish meanwhile."""
    for place in made("envs"):
        if not place.name.startswith("making-"):
            with suppress(FileNotFoundError):
                yield place.stat().st_mtime, place


def clear(console: Console, yes: bool, edited: Iterable[str]) -> None:
    """Remove what bench-prep made, but locks and edited worktrees; those of `edited` are too.

    What else lies in the folder stays, and is named.

    Raises:
        UsageError: a build, a run or another user of the cache is at work, `edited` names no
            worktree, or the question was not answered with yes.
    """
    folder = cache_dir()
    with ExitStack() as locks:
        for name in (BUILD, INSTALL, OFFICIAL, USE):
            try:
                locks.enter_context(locked_at_once(name))
            except Timeout:
                raise in_use_by(name) from None
        kept = _edited_worktrees(folder, set(edited))
        for worktree, why in kept.items():
            console.print(
                f"kept     {worktree}: {why}; to remove it too: --edited {worktree.name}",
                highlight=False, soft_wrap=True, markup=False,
            )  # fmt: skip
        others = _not_ours(folder)
        if others:
            more = f" and {len(others) - _NAMED} more" if others[_NAMED:] else ""
            console.print(
                f"kept     {', '.join(others[:_NAMED])}{more}: not made by bench-prep",
                highlight=False, soft_wrap=True, markup=False,
            )  # fmt: skip
        doomed = list(_removable(kept))
        size = sum(_size(path)[0] for path in doomed)
        if not doomed:
            console.print("removed  nothing: nothing of bench-prep is here", highlight=False)
            return
        if not yes and not _agreed(console, f"Remove {_mb(size)} MB in {folder}?"):
            raise UsageError("nothing was removed", "answer y, or give --yes")
        for path in doomed:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for part in MADE:
            with suppress(OSError):
                (folder / part).rmdir()
        console.print(
            f"removed  {_mb(size)} MB in {folder}", highlight=False, soft_wrap=True, markup=False
        )


def _agreed(console: Console, question: str) -> bool:
    try:
        return Confirm.ask(Text(question, style="prompt"), console=console, default=False)
    except EOFError:
        console.print()
        return False


def _edited_worktrees(folder: Path, given_up: set[str]) -> dict[Path, str]:
    """The official worktrees to keep, each with the reason."""
    worktrees = [path for path in (folder / "official").glob("vllm-*") if path.is_dir()]
    unknown = given_up - {path.name for path in worktrees}
    if unknown:
        names = ", ".join(path.name for path in worktrees) or "none"
        raise UsageError(
            f"there is no official worktree {', '.join(sorted(unknown))}", f"there is: {names}"
        )
    kept = {}
    for path in worktrees:
        files = edited_files(path.name.removeprefix("vllm-"))
        if files == [] or path.name in given_up:
            continue
        if files is None:
            kept[path] = "whether it was edited is not known"
        else:
            more = ", ..." if len(files) > _NAMED else ""
            kept[path] = f"you have edited {', '.join(files[:_NAMED])}{more}"
    return kept


def _removable(kept: dict[Path, str]) -> Iterator[Path]:
    # The hashes of a worktree that stays are needed to see its edits.
    versions = [worktree.name.removeprefix("vllm-") for worktree in kept]
    needed = {f"{v}{suffix}" for v in versions for suffix in (".json", ".unpacked.json")}
    for part in MADE:
        yield from (path for path in made(part) if path not in kept and path.name not in needed)


def _not_ours(folder: Path) -> list[str]:
    """What lies in the cache's folder, or in one of its parts, and was not made by bench-prep."""
    ours = {path for part in MADE for path in made(part)}
    inside = [folder / part for part in MADE if (folder / part).is_dir()]
    found = [path for place in (folder, *inside) for path in place.iterdir()]
    return sorted(
        path.relative_to(folder).as_posix()
        for path in found
        if path not in ours and path not in inside and not _LOCKS.fullmatch(path.name)
    )


def _size(path: Path) -> tuple[int, int]:
    """Bytes and files, links not followed."""
    sizes = []
    for file in _within(path):
        with suppress(FileNotFoundError):  # a build at work removes some meanwhile
            found = file.lstat()
            if not stat.S_ISDIR(found.st_mode):
                sizes.append(found.st_size)
    return sum(sizes), len(sizes)


def _within(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        yield from (Path(folder, name) for name in (*folders, *files))


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"
