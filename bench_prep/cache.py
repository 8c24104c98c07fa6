"""`bench-prep cache`: where the cache is, how large its parts are, and its removal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import Timeout
from rich.console import Console
from rich.prompt import Confirm
from rich.table import Table

from bench_prep.errors import UsageError
from bench_prep.provenance.cachedir import cache_dir
from bench_prep.provenance.locks import BUILD, INSTALL, OFFICIAL, USE, in_use_by, locked_at_once
from bench_prep.provenance.official import edited_files

_PARTS = {
    "downloads": "source distributions and wheels as fetched",
    "official": "official worktrees, to edit",
    "wheels": "built wheels with their build logs",
    "logs": "logs of failed builds and of runs",
    "envs": "environments of compared worktrees",
}
_NAMED = 3


def show(console: Console) -> None:
    """The place of the cache, and the size of each part in MB."""
    folder = cache_dir()
    console.print(f"cache    {folder}", highlight=False, soft_wrap=True)
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
        what = _PARTS.get(name, "locks, and what an interrupted build left")
        table.add_row(name, _mb(size), str(count), what)
    table.add_section()
    total, count = (sum(numbers) for numbers in zip(*sizes.values(), strict=True))
    table.add_row("all", _mb(total), str(count), "")
    console.print(table)


def clear(console: Console, yes: bool, edited: Iterable[str]) -> None:
    """Remove everything but locks and edited worktrees; those of `edited` are removed too.

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
        doomed = list(_removable(folder, kept))
        size = sum(_size(path)[0] for path in doomed)
        if not doomed:
            console.print("removed  nothing: the cache is empty", highlight=False)
            return
        if not yes and not _agreed(console, f"Remove {_mb(size)} MB in {folder}?"):
            raise UsageError("nothing was removed", "answer y, or give --yes")
        for path in doomed:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        console.print(f"removed  {_mb(size)} MB in {folder}", highlight=False, soft_wrap=True)


def _agreed(console: Console, question: str) -> bool:
    try:
        return Confirm.ask(question, console=console, default=False)
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


def _removable(folder: Path, kept: dict[Path, str]) -> Iterable[Path]:
    for path in folder.iterdir():
        if path.suffix in (".lock", ".holder"):
            continue  # a lock that is removed can be held twice
        if path.name != "official" or not kept:
            yield path
            continue
        # The hashes of a worktree that stays are needed to see its edits.
        versions = [worktree.name.removeprefix("vllm-") for worktree in kept]
        for child in path.iterdir():
            belongs = any(
                child.name in (f"vllm-{v}", f"{v}.json", f"{v}.unpacked.json") for v in versions
            )
            if not belongs:
                yield child


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
