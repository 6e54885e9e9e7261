"""How Hadoop writes and matches paths: sources and sinks must agree with Spark about the names of files.

A path has two forms. Spark's logs have its URI, in which a blank is ``%20``. Spark's readers take the text of
the path, in which a blank is a blank, and some characters make a pattern::

    file:///in/a%20%5B1%5D.csv          in a log
    file:///in/a \\[1\\].csv            for spark.read.load
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from urllib.parse import quote, unquote

from tidemill.common.paths import split_path

_AS_THEY_ARE = "/_-!.~'()*,;:$&+=@"
_NEEDS_QUOTING = re.compile(rf"[^A-Za-z0-9{re.escape(_AS_THEY_ARE)}]")
_PATTERN_CHARACTERS = re.compile(r"[\\{}\[\]*?]")


def _quote_one(match: re.Match[str]) -> str:
    char = match[0]
    # Java leaves letters of all languages as they are, but not blanks and control characters.
    if char.isascii() or unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc"):
        return quote(char, safe="")
    return char


def uri_of(path: str) -> str:
    """Return the URI of an absolute path (``/in/a b``, ``hdfs://host/in/a b``) as Spark's logs have it.

    >>> uri_of("/in/a b")
    'file:///in/a%20b'
    """
    scheme, authority, rest = split_path(path)
    return f"{scheme or 'file'}://{authority}{_NEEDS_QUOTING.sub(_quote_one, rest)}"


def path_of(uri: str) -> str:
    """Return the path that :func:`uri_of` was called with, with its scheme unless it is local.

    >>> path_of("file:///in/a%20b")
    '/in/a b'
    """
    scheme, authority, rest = split_path(uri)
    path = unquote(rest)
    return path if scheme in ("", "file") else f"{scheme}://{authority}{path}"


def readable_path(uri: str) -> str:
    """Return the text by which Spark's readers find this one file, whatever characters its name has."""
    scheme, authority, rest = split_path(uri)
    return f"{scheme or 'file'}://{authority}{escaped(unquote(rest))}"


def partition_columns(folder: str, base: str) -> list[str]:
    """Return the columns that the directories below ``base``, down to ``folder``, give to its files.

    >>> partition_columns("file:///in/day=1/hour=2", "/in"), partition_columns("/in/day=1/x", "/in")
    (['day', 'hour'], ['day'])
    """
    above = os.path.abspath(split_path(base)[2]).rstrip("/").count("/")
    columns: list[str] = []
    for part in reversed(split_path(folder)[2].split("/")[above + 1 :]):
        if "=" in part:
            columns.insert(0, unquote(part.partition("=")[0]))
        elif columns:
            break
    return columns


def escaped(path: str) -> str:
    """Return a pattern that matches this path and nothing else."""
    return _PATTERN_CHARACTERS.sub(r"\\\g<0>", path)


def is_pattern(path: str) -> bool:
    """Return True for a path that Spark takes for a pattern, even if all special characters are escaped."""
    return _PATTERN_CHARACTERS.search(path) is not None


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the patterns without braces that a pattern stands for. ``ValueError`` for an open brace.

    >>> list(expand_braces("a{b,c{1,2}}"))
    ['ab', 'ac1', 'ac2']
    """
    start, depth, parts, i = -1, 0, [], 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            i += 1
        elif char == "{":
            depth += 1
            if depth == 1:
                start, parts = i, [i + 1]
        elif char == "," and depth == 1:
            parts.append(i + 1)
        elif char == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                ends = [*(part - 1 for part in parts[1:]), i]
                for begin, end in zip(parts, ends, strict=True):
                    yield from expand_braces(
                        pattern[:start] + pattern[begin:end] + pattern[i + 1 :]
                    )
                return
        i += 1
    if depth:
        raise ValueError(f"the brace at position {start} is not closed")
    yield pattern


@cache
def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for a pattern of names in Hadoop's syntax.

    That has ``*``, ``?``, ``[a-c]``, ``[^a-c]``, ``{one,other}``, and ``\\`` before a literal character.
    """
    return re.compile("|".join(_translate(one) for one in expand_braces(pattern)), re.DOTALL)


def _translate(pattern: str) -> str:
    out, i = [], 0
    while i < len(pattern):
        char = pattern[i]
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "\\":
            i += 1
            if i == len(pattern):
                raise ValueError("it ends with a backslash that escapes nothing")
            out.append(re.escape(pattern[i]))
        elif char == "[":
            end = i + 2
            while end < len(pattern) and pattern[end] != "]":
                end += 2 if pattern[end] == "\\" else 1
            if end >= len(pattern):
                raise ValueError(f"the bracket at position {i} is not closed")
            inside = pattern[i + 1 : end]
            negated = inside[0] in "!^"
            body = inside[negated:].replace("[", "\\[")
            out.append(f"[{'^' if negated else ''}{body}]")
            i = end
        else:
            out.append(re.escape(char))
        i += 1
    return "".join(out)


def matching_paths(pattern: str) -> list[str]:
    """Return all local paths that match an absolute pattern, in order.

    ``OSError`` for a directory that is there and cannot be listed: nobody knows what matches in it.
    """
    found: set[str] = set()
    for one in expand_braces(pattern):
        found.update(_matching(["/"], [part for part in one.split("/") if part]))
    return sorted(found)


def _matching(folders: list[str], parts: list[str]) -> list[str]:
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        if not is_pattern(part):
            paths = [os.path.join(folder, part) for folder in folders]
            folders = [path for path in paths if os.path.lexists(path)] if is_last else paths
            continue
        regex = glob_regex(part)
        matched = []
        for folder in folders:
            try:
                names = os.listdir(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            matched += [os.path.join(folder, name) for name in names if regex.fullmatch(name)]
        folders = matched
    return folders
