"""What a path is: a file of this machine, or a URI of another file system. Nothing else decides that.

::

    /data/in  data/in                       of this machine; for Spark, of its default file system
    file:/data/in  file:///data/in          of this machine
    hdfs://host:8020/in  s3a://bucket/in    of another file system

As in Hadoop, nothing is unescaped: ``%20`` in a path is three characters.
"""

from __future__ import annotations

import os
import re

from tidemill.errors import OptionError

_PATH = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):(?=/))?(?://([^/]*))?(.*)", re.DOTALL)


def split_path(path: str) -> tuple[str, str, str]:
    """Return scheme, authority and path, not decoded. A colon that no ``/`` follows makes no scheme.

    >>> split_path("hdfs://host:8020/in"), split_path("file:/in")
    (('hdfs', 'host:8020', '/in'), ('file', '', '/in'))
    >>> split_path("/in/10:30"), split_path("a:b/c")
    (('', '', '/in/10:30'), ('', '', 'a:b/c'))
    """
    match = _PATH.match(path)
    assert match is not None
    # Without a scheme, slashes in front are slashes.
    return (match[1], match[2] or "", match[3]) if match[1] else ("", "", path)


def local_path(path: str, default_scheme: str = "file") -> str | None:
    """Return the absolute path of a file of this machine, without a scheme; None for another file system.

    ``default_scheme`` is the file system that a path without a scheme belongs to. Raise ``OptionError`` for a
    ``file:`` URI that could be taken for something else.

    >>> local_path("file:/data/in"), local_path("file:///data/in/"), local_path("hdfs://host/in")
    ('/data/in', '/data/in', None)
    """
    scheme, authority, rest = split_path(path)
    if path.startswith("file:") and not rest.startswith("/"):
        raise OptionError(
            f"{path!r} has a scheme and no absolute path: leave out the scheme, or write "
            f"'file:///{path[len('file:') :].lstrip('/')}'",
            "path",
        )
    if scheme == "file" and authority not in ("", "localhost"):
        raise OptionError(
            f"{path!r} names the host {authority!r}, and file: is this machine: write "
            f"'file:///{authority}{rest}' if that is the beginning of the path",
            "path",
        )
    return os.path.abspath(rest) if (scheme or default_scheme) == "file" else None


def checkpoint_location(directory: str, option: str) -> str:
    """Return ``directory`` as :func:`absolute_location` does; ``option`` names the argument in errors."""
    if not isinstance(directory, str) or not directory:
        raise OptionError(
            f"the checkpoint directory must be a path or a URI, not {directory!r}", option
        )
    return absolute_location(directory)


def absolute_location(path: str) -> str:
    """Return the absolute path of a directory of this machine, or the URI of another file system as it is.

    The program may change its working directory later, and be started again from another one.
    """
    local = local_path(path)
    return path if local is None else local
