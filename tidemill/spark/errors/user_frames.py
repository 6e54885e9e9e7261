"""Tracebacks cut down to what their user can act on: the frames of the program, and the message."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyspark

import tidemill
from tidemill.tasks.fused_loop import FILE_NAME

HEADER = "Traceback (most recent call last):"
MOST_MESSAGE_LINES = 4
LONGEST_LINE = 500

_PYSPARK = os.path.dirname(os.path.abspath(pyspark.__file__)) + os.sep
_TIDEMILL = os.path.dirname(os.path.abspath(tidemill.__file__)) + os.sep
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = re.compile(r"(site-packages|\.zip)/(pyspark|py4j|tidemill)/")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/")
_FRAME = re.compile(r'^ {2}File "(?P<file>[^"]+)", line ')
_REPEATED = "  [Previous line repeated "
_MARKS = re.compile(r"^ +[~^]+$")  # under the part of a line that failed
_PART = "Exception of the group, number"
_IS_PART = re.compile(rf"^{_PART} (\d+|\.\.\.):$")
_JOINTS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# A group of exceptions has a margin, and a rule above each of them.
_GROUP = f"Exception Group {HEADER}"
_MARGIN = re.compile(r"^ *(?:[|] ?|(?P<rule>\+[-+]*(?: (?P<number>\d+|\.{3}) -+)?$))")
_SQL_STATE = re.compile(r"^\s*SQLSTATE: \w+$")
# A class of Java or Scala, or of a package between the user and Spark, with the path to it.
_CLASS_PATH = re.compile(
    r"\b(?:org\.apache|java|javax|scala|py4j|pyspark|tidemill|com\.[a-z]+)\.(?:[\w$]+\.)*(?=[A-Z]\w*\b)"
)


@dataclass
class Frame:
    """One frame of a traceback: its file, and its lines as Python prints them."""

    file: str
    lines: list[str]

    @property
    def is_plumbing(self) -> bool:
        return is_plumbing(self.file)

    @property
    def is_library(self) -> bool:
        return self.file.startswith(_STANDARD_LIBRARY) or bool(_LIBRARY.search(self.file))


@dataclass
class Block:
    """One exception of a chain: its frames, its message, and the line that joins it to the one before."""

    joint: str = ""
    frames: list[Frame] = field(default_factory=list)
    message: list[str] = field(default_factory=list)


def short_traceback(text: str, most_lines: int) -> str:
    """Return a traceback without the frames of Spark and Tidemill, in at most ``most_lines`` lines.

    IF no frame is the user's, only the message of the last exception is left.
    """
    blocks = _blocks(text)
    if not any(frame for block in blocks for frame in block.frames if not frame.is_plumbing):
        return "\n".join(short_message(blocks[-1].message)[:most_lines])
    for most_frames in (4, 2, 1):
        lines = [line for block in blocks for line in _shown(block, most_frames)]
        if len(lines) <= most_lines:
            return "\n".join(lines)
    # What was raised first, and what it has led to.
    first, last = _shown(blocks[0], 1), _shown(blocks[-1], 1)
    lines = [*first, "[...]", *last] if len(blocks) > 1 else last
    return "\n".join(cut_middle(lines, most_lines))


def own_frames(text: str) -> list[str]:
    """Return the frames of a traceback that are neither PySpark's nor Tidemill's, some lines each."""
    frames = [frame for block in _blocks(f"{HEADER}\n{text}") for frame in block.frames]
    return ["\n".join(frame.lines) for frame in frames if not frame.is_plumbing]


def has_own_frame_of_the_program(text: str) -> bool:
    """Return True if a frame is of the user's program, not only of libraries that it uses."""
    frames = [frame for block in _blocks(text) for frame in block.frames]
    return any(not frame.is_plumbing and not frame.is_library for frame in frames)


def short_message(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a message, each of bearable length, without paths to classes of Spark's."""
    kept = list(lines)
    while kept and (not kept[-1].strip() or _SQL_STATE.match(kept[-1])):
        kept.pop()
    if kept:
        # Elsewhere the user may mean it.
        kept[0] = _CLASS_PATH.sub("", kept[0], count=1) if _is_type_first(kept[0]) else kept[0]
    more = len(kept) > MOST_MESSAGE_LINES
    return [_cut(line) for line in kept[:MOST_MESSAGE_LINES]] + ["[...]"] * more


def without_class_paths(text: str) -> str:
    """Return a text of the JVM with the names of classes instead of the paths to them.

    >>> without_class_paths("org.apache.hadoop.mapred.InvalidInputException: no java.io.File")
    'InvalidInputException: no File'
    """
    return _CLASS_PATH.sub("", text)


def cut_middle(lines: Sequence[str], most_lines: int) -> list[str]:
    """Return at most ``most_lines`` lines: the first few and the last, which has the error."""
    if len(lines) <= most_lines:
        return list(lines)
    head = min(3, most_lines // 3)
    return [*lines[:head], "[...]", *lines[-(most_lines - head - 1) :]]


def is_plumbing(file: str) -> bool:
    """Return True for a file of Spark's or Tidemill's."""
    # The pattern is for executors, where packages may be installed elsewhere than on the driver.
    return file.startswith((_PYSPARK, _TIDEMILL, FILE_NAME, "<frozen")) or bool(
        _INSTALLED.search(file)
    )


def _is_type_first(line: str) -> bool:
    return bool(re.match(r"[\w.$]+(:|$)", line))


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 6]} [...]"


def _shown(block: Block, most_frames: int) -> list[str]:
    frames = _chosen([frame for frame in block.frames if not frame.is_plumbing], most_frames)
    joint = [block.joint] if block.joint else []
    head = [HEADER] if frames else []
    lines = [line for frame in frames for line in frame.lines]
    return [*joint, *head, *map(_cut, lines), *short_message(block.message)]


def _chosen(frames: list[Frame], most: int) -> list[Frame]:
    """Choose the innermost frames of the program, and with room for two the innermost frame of all."""
    if len(frames) <= most:
        return frames
    program = [frame for frame in frames if not frame.is_library]
    if not program:
        return frames[-most:]
    if frames[-1] is program[-1] or most == 1:
        return program[-most:]
    return [*program[-(most - 1) :], frames[-1]]


def without_margins(text: str) -> str:
    """Return the traceback of a group of exceptions as that of a chain: the group, then each of its parts."""
    if f"+ {_GROUP}" not in text:
        return text
    lines = []
    in_group = False
    for line in text.splitlines():
        if line.endswith(_GROUP):  # after a margin, or after what Spark says
            in_group = True
            lines.append(HEADER)
        elif not in_group or (margin := _MARGIN.match(line)) is None:
            lines.append(line)
        elif margin["rule"] is None:
            lines.append(line[margin.end() :])
        elif margin["number"] is not None:
            lines.append(f"{_PART} {margin['number']}:")
    return "\n".join(lines)


def _blocks(text: str) -> list[Block]:
    """Cut the text of a traceback, perhaps of a chain or of a group of exceptions, into its parts."""
    blocks = [Block()]
    joint = ""
    for line in without_margins(text).splitlines():
        block = blocks[-1]
        frame = _FRAME.match(line)
        if line in _JOINTS:
            joint = line
        elif _IS_PART.match(line):
            # Of an exception that was not raised, there is only the message.
            blocks.append(Block(line))
        elif line == HEADER:
            if block.frames or block.message:
                blocks.append(Block(joint))
            joint = ""
        elif frame and not block.message:
            block.frames.append(Frame(frame["file"], [line]))
        elif block.frames and not block.message and line.startswith(("    ", _REPEATED)):
            if not _MARKS.match(line):
                block.frames[-1].lines.append(line)
        else:
            block.message.append(line)
    for block in blocks:
        while block.message and not block.message[-1].strip():
            block.message.pop()
    return blocks
