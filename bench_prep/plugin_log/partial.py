"""Lines that a container's runtime split, put together again."""

from __future__ import annotations

import re
from collections.abc import Callable

Read = Callable[[int], bytes]

#: No line of the plugin is longer; what is longer stays split.
_LONGEST = 1 << 18
#: containerd and CRI-O: a `P` where a line goes on in the stream's next line, `F` in its last.
_CRI = re.compile(rb"(\S+ (stdout|stderr)) ([PF]) (.*)()", re.DOTALL)
#: Docker: the text has no line feed at its end where the line goes on.
_DOCKER = re.compile(rb'(\{"log":")()()(.*?)(","stream":"(?:stdout|stderr)".*)', re.DOTALL)


def whole_lines(read: Read) -> Read:
    """A `read` that returns every line as it was written; it gives what it gets otherwise."""
    rest = b""
    begun: dict[bytes, tuple[bytes, bytes]] = {}

    def joined(size: int) -> bytes:
        nonlocal rest
        while True:
            chunk = read(size)
            end = chunk.rfind(b"\n") + 1
            if not end and chunk and len(rest) < _LONGEST:
                rest += chunk
                continue
            end = end or len(chunk)
            data, rest = b"".join((rest, memoryview(chunk)[:end])), chunk[end:]
            if begun or _has_parts(data):
                data = b"".join(map(whole, data.splitlines(keepends=True)))
            if not chunk:
                data += b"".join(head + body for head, body in begun.values())
                begun.clear()
            if data or not chunk:
                return data

    def whole(line: bytes) -> bytes:
        found = _CRI.fullmatch(line) or _DOCKER.fullmatch(line)
        if found is None:
            return line
        head, stream, tag, body, tail = found.groups()
        stream = stream or tail[:20]
        if tag:
            goes_on, head = tag == b"P", head + b" F "
            body = body.rstrip(b"\r\n") if goes_on else body
        else:
            goes_on = not body.endswith(rb"\n")
        head, before = begun.pop(stream, (head, b""))
        if goes_on and len(before) < _LONGEST:
            begun[stream] = head, before + body
            return b""
        return head + before + body + tail

    return joined


def may_be_split(first: bytes) -> bool:
    """Whether a log that begins so comes from a runtime that splits lines."""
    return bool(_CRI.match(first) or first.startswith(b'{"log":"'))


def _has_parts(data: bytes) -> bool:
    if data.startswith(b'{"log":"'):
        return data.count(b'","stream":"') != data.count(rb'\n","stream":"')
    return b" P " in data
