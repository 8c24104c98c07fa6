"""git, asked so that nothing foreign runs and nothing outside a worktree answers for it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

#: Replaced objects would be other contents under the same hash; a missing object is not fetched.
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
#: Settings that would run a program, or believe what a cache says of the files.
_SETTINGS = ("core.fsmonitor=false", "core.untrackedCache=false", "core.commitGraph=false")


class NoAnswer(Exception):
    """git is missing or refuses; the first line of what it says."""


def git(root: Path, *arguments: str) -> str:
    """What a git command says of the worktree that has its `.git` at `root`.

    Only for commands that run no hook, filter or diff program: `rev-parse`, `ls-tree`, `ls-files`,
    `describe` without `--dirty`. The variables with which hooks name another repository count not.

    Raises:
        NoAnswer: git is missing or refuses.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= _ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *settings, *arguments], env=env, capture_output=True
        )
    except (OSError, ValueError) as error:
        raise NoAnswer(f"git cannot be run: {error}") from None
    if done.returncode != 0:
        raise NoAnswer((os.fsdecode(done.stderr).splitlines() or ["git says nothing"])[0])
    return os.fsdecode(done.stdout).removesuffix("\n")


def is_blob(content: bytes, name: str) -> bool:
    """Whether this is the content that git names so, by SHA-1 or SHA-256."""
    algorithm = "sha1" if len(name) == 40 else "sha256"
    blob = hashlib.new(algorithm, b"blob %d\0" % len(content), usedforsecurity=False)
    blob.update(content)
    return blob.hexdigest() == name
