"""The files of a file sink, as other readers see them."""

from __future__ import annotations

from pathlib import Path


def visible(target: Path) -> list[str]:
    """What a reader that knows nothing of the manifest would see."""
    return sorted(
        str(path.relative_to(target))
        for path in target.rglob("*")
        if path.is_file()
        and not any(part[0] in "_." for part in path.relative_to(target).parts if "=" not in part)
    )
