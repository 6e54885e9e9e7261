"""The operations that programs are put together from.

An operation is text with ``{s}`` for a stream, ``{t}`` for another stream of the same kind and slide, ``{n}``
for a number of partitions, and ``{w}`` and ``{d}`` for a window and its slide in seconds. Its results do not
depend on the order of records, nor on the number of partitions where the program does not ask for one.
"""

from __future__ import annotations

WORDS, NUMBERS, PAIRS = "words", "numbers", "pairs"

Operations = dict[tuple[str, str], tuple[str, ...]]
"""By the kind of stream that goes in, and the kind that comes out."""

BY_BATCH: Operations = {
    (WORDS, WORDS): (
        "{s}.flatMap(lambda line: line.split())",
        "{s}.filter(lambda line: 'a' in line)",
        "{s}.map(lambda line: line.upper())",
        "{s}.mapPartitions(lambda lines: [line + '.' for line in lines])",
        "{s}.mapPartitionsWithIndex(lambda number, lines: (line[:3] for line in lines))",
        "{s}.glom().flatMap(lambda lines: lines)",
        "{s}.cache()",
        "{s}.repartition({n})",
        "{s}.transform(lambda rdd: rdd.distinct())",
        "{s}.transform(lambda time, rdd: rdd.map(lambda line: line + str(time.second)))",
        "{s}.transformWith(lambda a, b: a.subtract(b), {t})",
        "{s}.transformWith(lambda time, a, b: a.intersection(b), {t})",
        "{s}.union({t})",
        "ssc.union({s}, {t}, {s})",
        "ssc.transform([{s}, {t}], lambda rdds: rdds[0].union(rdds[1]).distinct())",
    ),
    (WORDS, NUMBERS): (
        "{s}.map(len)",
        "{s}.count()",
        "{s}.repartition({n}).mapPartitions(lambda lines: [1]).reduce(add)",
    ),
    (WORDS, PAIRS): (
        "{s}.map(lambda line: (line[:1], len(line)))",
        "{s}.flatMap(lambda line: line.split()).map(lambda word: (word, 1))",
        "{s}.countByValue()",
    ),
    (NUMBERS, NUMBERS): (
        "{s}.map(lambda n: n * 2 - 1)",
        "{s}.filter(lambda n: n % 2)",
        "{s}.flatMap(lambda n: [n, -n])",
        "{s}.reduce(add)",
        "{s}.reduce(max)",
        "{s}.count()",
        "{s}.union({t})",
        "{s}.persist(StorageLevel.MEMORY_AND_DISK)",
        "{s}.glom().map(len).reduce(add)",
    ),
    (NUMBERS, PAIRS): (
        "{s}.map(lambda n: ('odd' if n % 2 else 'even', n))",
        "{s}.map(lambda n: (str(n % 3), abs(n)))",
        "{s}.countByValue().map(lambda pair: (str(pair[0]), pair[1]))",
    ),
    (PAIRS, PAIRS): (
        "{s}.reduceByKey(add)",
        "{s}.reduceByKey(max, {n})",
        "{s}.groupByKey().mapValues(lambda values: sum(values))",
        "{s}.groupByKey({n}).mapValues(lambda values: len(list(values)))",
        "{s}.combineByKey(lambda v: [v], lambda c, v: c + [v], add).mapValues(lambda c: max(c))",
        "{s}.combineByKey(str, lambda c, v: str(int(c) + v), lambda c, d: str(int(c) + int(d)), {n})"
        ".mapValues(int)",
        "{s}.mapValues(lambda v: v + 1)",
        "{s}.flatMapValues(lambda v: range(v % 3))",
        "{s}.partitionBy({n})",
        "{s}.partitionBy({n}).map(lambda pair: (pair[0], pair[1] * 3), preservesPartitioning=True)"
        ".reduceByKey(add, {n})",
        "{s}.partitionBy({n}).map(lambda pair: (pair[0][:1], pair[1])).reduceByKey(add, {n})",
        "{s}.filter(lambda pair: pair[1] % 2).reduceByKey(add)",
        "{s}.join({t}).mapValues(lambda both: both[0] * 100 + both[1])",
        "{s}.join({t}, {n}).mapValues(sum)",
        "{s}.leftOuterJoin({t}).mapValues(lambda both: both[0] - (both[1] or 0))",
        "{s}.rightOuterJoin({t}, {n}).mapValues(lambda both: (both[0] or 0) - both[1])",
        "{s}.fullOuterJoin({t}).mapValues(lambda both: (both[0] or 0) + 7 * (both[1] or 0))",
        "{s}.cogroup({t}, {n}).mapValues(lambda sides: sum(map(sum, sides)))",
        "{s}.union({t}).transform(lambda rdd: rdd.sortByKey())",
    ),
    (PAIRS, WORDS): ("{s}.map(lambda pair: pair[0] + str(pair[1]))",),
    (PAIRS, NUMBERS): ("{s}.map(lambda pair: pair[1])", "{s}.count()"),
}  # fmt: skip

# What both engines answer alike is asked for: see ON_PURPOSE in ``pending``.
BY_WINDOW: Operations = {
    (WORDS, WORDS): ("{s}.window({w}, {d})", "{s}.window({w})"),
    (WORDS, NUMBERS): ("{s}.countByWindow({w}, {d}).filter(lambda n: n)",),
    (WORDS, PAIRS): (
        "{s}.countByValueAndWindow({w}, {d})",
        "{s}.countByValueAndWindow({w}, {d}, {n})",
    ),
    (NUMBERS, NUMBERS): (
        "{s}.reduceByWindow(add, None, {w}, {d})",
        "{s}.reduceByWindow(max, None, {w}, {d})",
        "{s}.reduceByWindow(add, sub, {w}, {d}).filter(lambda n: n)",
        "{s}.window({w}, {d})",
    ),
    (PAIRS, PAIRS): (
        "{s}.reduceByKeyAndWindow(add, None, {w}, {d})",
        "{s}.reduceByKeyAndWindow(max, None, {w}, {d}, {n})",
        "{s}.reduceByKeyAndWindow(add, sub, {w}, {d}).filter(lambda pair: pair[1])",
        "{s}.mapValues(lambda v: v * v + 1).reduceByKeyAndWindow(add, sub, {w}, {d}, {n}, "
        "filterFunc=lambda pair: pair[1] > 0)",
        "{s}.groupByKeyAndWindow({w}, {d}, {n}).mapValues(lambda values: len(list(values)))"
        ".filter(lambda pair: pair[1])",
        "{s}.window({w}, {d}).reduceByKey(add)",
    ),
}  # fmt: skip

WITH_STATE: Operations = {
    (PAIRS, PAIRS): (
        "{s}.updateStateByKey(lambda new, old: sum(new) + (old or 0))",
        "{s}.updateStateByKey(lambda new, old: max([*new, old or 0]), {n})",
        "{s}.updateStateByKey(lambda new, old: sum(new) if new else None)",
        "{s}.updateStateByKey(lambda new, old: len(new) + (old or 0), {n}, [('a', 5), ('sea', 7)])",
        "{s}.reduceByKey(add).checkpoint({d})",
    ),
}

MAP_WITH_STATE: Operations = {
    (PAIRS, PAIRS): (
        "{s}.mapWithState(StateSpec.function(lambda key, value, state: "
        "state.update((state.getOption() or 0) + value) or (key, state.get())))",
        "{s}.mapWithState(StateSpec.function(lambda key, value, state: (key, -state.get()) "
        "if state.isTimingOut() else state.update(value) or (key, value)).timeout(2).numPartitions({n}))",
        "{s}.mapWithState(StateSpec.function(lambda key, value, state: state.remove() "
        "if state.exists() and value % 2 else state.update(value) or (key, value))).stateSnapshots()",
    ),
}
"""Operations that only Tidemill has: for programs that are compared with themselves."""
