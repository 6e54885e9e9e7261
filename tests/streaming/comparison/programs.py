"""A program that both engines run.

It is text, so that a difference is found as a program which anybody can read and run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, sub
from typing import Any

from pyspark import StorageLevel

from tests.streaming.comparison.feeding import Input

Keep = Callable[[str, Any], None]
"""Called with the name of an output and its stream."""


@dataclass(frozen=True)
class Line:
    """One statement, ``name = expression``, and the names that it uses."""

    name: str
    expression: str

    @property
    def used(self) -> set[str]:
        return set(re.findall(r"\bs\d+\b", self.expression))

    def __str__(self) -> str:
        return f"{self.name} = {self.expression}"


@dataclass(frozen=True)
class Program:
    """Statements over the streams ``s0``, ``s1``, ... of its inputs, and the streams that are its outputs."""

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    batches: int = 8

    def build(
        self, ssc: Any, inputs: list[Any], keep: Keep, more: Mapping[str, Any] | None = None
    ) -> None:
        """Make all streams of the program, and give its outputs to ``keep``."""
        names = {
            "ssc": ssc,
            "add": add,
            "sub": sub,
            "StorageLevel": StorageLevel,
            **(more or {}),
            **{f"s{number}": stream for number, stream in enumerate(inputs)},
        }
        for line in self.lines:
            exec(str(line), names)
        for name in self.outputs:
            keep(name, names[name])

    @property
    def keeps_state(self) -> bool:
        return any(
            each in line.expression
            for line in self.lines
            for each in ("updateStateByKey", "mapWithState", ".checkpoint(")
        )

    def only(self, output: str) -> Program:
        """Return the part of the program that the output needs."""
        needed = {output}
        lines: list[Line] = []
        for line in reversed(self.lines):
            if line.name in needed:
                needed |= line.used
                lines.insert(0, line)
        return Program(self.inputs, tuple(lines), (output,), self.batches)

    def __str__(self) -> str:
        inputs = [f"s{number} = {each}" for number, each in enumerate(self.inputs)]
        return "\n".join([*inputs, *map(str, self.lines), f"# outputs: {', '.join(self.outputs)}"])
