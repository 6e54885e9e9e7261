"""Puts programs together that nobody has thought of."""

from __future__ import annotations

from random import Random

from tests.streaming.comparison.feeding import LINES, Input
from tests.streaming.comparison.operations import (
    BY_BATCH,
    BY_WINDOW,
    MAP_WITH_STATE,
    NUMBERS,
    PAIRS,
    WITH_STATE,
    WORDS,
    Operations,
)
from tests.streaming.comparison.programs import Line, Program

KIND_OF = {LINES: WORDS, "numbers": NUMBERS, "pairs": PAIRS}
LONGEST_SLIDE = 3


def generate(seed: int, lines: int = 7, batches: int = 8) -> Program:
    """Make the program of a seed, which both engines can run."""
    return _Writer(Random(seed), batches, [BY_BATCH, BY_BATCH, BY_WINDOW, WITH_STATE]).write(lines)


def generate_durable(seed: int, lines: int = 6, batches: int = 8) -> Program:
    """Make the program of a seed that Tidemill runs with a checkpoint directory."""
    random = Random(seed)
    operations = [BY_BATCH, BY_WINDOW, WITH_STATE, MAP_WITH_STATE]
    return _Writer(random, batches, operations).write(lines)


class _Writer:
    """Writes one program, line by line."""

    def __init__(self, random: Random, batches: int, operations: list[Operations]) -> None:
        self._random = random
        self._batches = batches
        self._operations = operations
        # The kind and the slide of each stream, by name.
        self._streams: dict[str, tuple[str, int]] = {}
        self._lines: list[Line] = []

    def write(self, lines: int) -> Program:
        inputs = tuple(self._input(number) for number in range(self._random.choice([1, 2, 2])))
        # Each stream begins as something to work with: a line that gives pairs is a good beginning.
        for name, (kind, _) in list(self._streams.items()):
            if kind != PAIRS:
                self._add(name, BY_BATCH, kind, PAIRS)
        while len(self._lines) < lines:
            name = self._random.choice(list(self._streams)[-4:])
            operations = self._random.choice(self._operations)
            results = [result for kind, result in operations if kind == self._streams[name][0]]
            if results:
                kind = self._streams[name][0]
                self._add(name, operations, kind, self._random.choice(results))
        used = {name for line in self._lines for name in line.used}
        outputs = tuple(line.name for line in self._lines if line.name not in used)
        return Program(inputs, tuple(self._lines), outputs, self._batches)

    def _input(self, number: int) -> Input:
        source = self._random.choice(["queue", "queue", "text", "binary"])
        records = LINES if source != "queue" else self._random.choice(list(KIND_OF))
        made = Input(
            source,
            records,
            self._random.randrange(10_000),
            # Some queues end before the program does.
            self._random.choice([self._batches, self._batches - 3]),
            one_at_a_time=self._random.random() < 0.8,
            default=self._random.random() < 0.3,
        )
        self._streams[f"s{number}"] = KIND_OF[records], 1
        return made

    def _add(self, stream: str, operations: Operations, kind: str, result: str) -> None:
        slide = self._streams[stream][1]
        text = self._random.choice(operations[kind, result])
        others = [
            name
            for name, described in self._streams.items()
            if described == (kind, slide) and name != stream
        ]
        new_slide = slide
        if "{d}" in text:
            new_slide = slide * self._random.choice([1, 1, 2, 3])
            if new_slide > LONGEST_SLIDE:
                new_slide = slide
        # Spark uses an inverse function only for windows of at least five slides.
        window = slide * self._random.choice([1, 2, 3, 5, 6])
        if ".checkpoint(" in text:
            new_slide, window = slide, slide
        expression = text.format(
            s=stream,
            t=self._random.choice(others or [stream]),
            n=self._random.choice([1, 2, 3]),
            w=window,
            d=new_slide if ".checkpoint(" not in text else slide * 2,
        )
        name = f"s{len(self._streams)}"
        self._streams[name] = result, new_slide
        self._lines.append(Line(name, expression))
