"""Puts queries together that nobody has thought of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.sql.comparison import expressions as of
from tests.sql.comparison.inputs import COLUMNS, FORMATS, Rows
from tests.sql.comparison.pending import QUERY, left_out
from tests.sql.comparison.queries import APPEND, COMPLETE, UPDATE, Query, Run, text_of

RUNS = st.builds(
    Run,
    batches=st.lists(
        st.builds(Rows, st.integers(0, 9999), st.sampled_from([6, 12, 3, 1, 0, 40])),
        min_size=2,
        max_size=4,
    ).map(tuple),
    file_format=st.sampled_from(FORMATS),
    streams=st.sampled_from([1, 1, 1, 2]),
    restarts=st.sampled_from([(), (1,), (2,), (1, 2)]),
    available_now=st.sampled_from([True, True, False]),
    parallel=st.integers(0, 15),
    partitions=st.sampled_from([1, 2, 3]),
    null_times=st.sampled_from([False, False, True]),
    one_time=st.sampled_from([False, False, False, True]),
)


@st.composite
def queries_and_runs(draw: st.DrawFn) -> tuple[Query, Run]:
    """Draw a query that is compared, and a run that fits it."""
    run = draw(RUNS)
    writer = _Writer(draw, run)
    query = writer.write()
    sinks = ["foreachBatch", "foreachBatch", "memory", "foreach"]
    if query.mode == APPEND and "variant" not in writer.kinds:
        sinks += ["parquet", "table"]
    sink = draw(st.sampled_from(sinks))
    run = replace(run, sink=sink)
    if sink == "memory" and query.mode != COMPLETE:  # its rows do not outlive the query
        run = replace(run, restarts=())
    if not writer.closes_groups:  # see ON_PURPOSE
        run = replace(run, no_data_batches=False)
    if "ordered" in writer.kinds:  # the order of the rows of one task is that of the file
        run = replace(run, parallel=0)
    assume(QUERY not in left_out(text_of(query, run)))
    return query, run


@st.composite
def distinct_aggregations(draw: st.DrawFn) -> tuple[Query, Run]:
    """Draw a query that Spark refuses to stream. In complete mode its rows are those of the batch query."""
    run = replace(draw(RUNS), streams=1, sink="foreachBatch")
    writer = _Writer(draw, run)
    writer.row_by_row(1)
    chosen = writer.some(of.DISTINCT_AGGREGATES, 1, 3) + writer.some(of.AGGREGATES, 0, 2)
    results = ", ".join(f"{each} AS a{number}" for number, each in enumerate(chosen))
    key = writer.one(["k", "g", "y", "m", "b"])
    writer.add("df.createOrReplaceTempView('grouped')")
    writer.add(f"df = spark.sql({f'SELECT {key}, {results} FROM grouped GROUP BY {key}'!r})")
    query = Query(tuple(writer.lines), COMPLETE)
    assume(QUERY not in left_out(text_of(query, run)))
    return query, run


class _Writer:
    """Writes one query, line by line."""

    def __init__(self, draw: st.DrawFn, run: Run) -> None:
        self.draw = draw
        self.nested = run.file_format != "csv"
        self.streams = run.streams
        self.lines: list[str] = []
        self.kinds: set[str] = set()
        self.numbers = iter(range(100))
        self.watermark = False
        self.closes_groups = True
        if run.file_format == "text":
            fields = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            for name in ("df", "other")[: run.streams]:
                self.add(
                    f"{name} = {name}.selectExpr(\"from_json(value, '{fields}') v\").select('v.*')"
                )

    def write(self) -> Query:
        watermark = self.draw(st.sampled_from(["none", "first", "late", "late"]))
        if watermark == "first":
            self.watermarks(("df", "other")[: self.streams])
        if self.streams == 2:
            self.add("df = df.unionByName(other)")
        self.row_by_row(2)
        if watermark == "late":
            self.watermarks(("df",))
        deduplicated = self.chance(4)
        if deduplicated:
            self.deduplicate()
            self.row_by_row(1)
        if self.chance(3):
            self.project()
            modes = [APPEND, UPDATE]
        else:
            modes = self.aggregate()
        return Query(tuple(self.lines), self.draw(st.sampled_from(modes)))

    # -- the parts of a query ---------------------------------------------------------------------

    def watermarks(self, names: Sequence[str]) -> None:
        self.watermark = True
        for name in names:
            delay = self.one(["10 minutes", "0 seconds", "1 minute"])
            self.add(f"{name} = {name}.withWatermark('t', {delay!r})")

    def row_by_row(self, most: int) -> None:
        for _ in range(self.draw(st.integers(0, most))):
            self.add(self.one_step())

    def one_step(self) -> str:
        kind = self.one(["where", "where", "compute", "join", "union", "explode", "sql", "function", "spread",
                         "observe", "nulls", "pipe"])  # fmt: skip
        number = next(self.numbers)
        match kind:
            case "where":
                conditions = of.EMPTY_CONDITIONS if self.chance(12) else of.CONDITIONS
                return f"df = df.where({self.one(conditions)!r})"
            case "compute":
                return f"df = df.withColumn('c{number}', F.expr({self.expression()!r}))"
            case "join":
                return self.join()
            case "union":
                return f"df = df.where({self.one(of.CONDITIONS)!r}).unionByName(df)"
            case "explode":
                return self.one([
                    f"df = df.withColumn('e{number}', F.explode(F.array('k', 'i')))",
                    f"df = df.selectExpr('*', 'explode_outer(sequence(0, k)) AS e{number}')",
                    f"df = df.selectExpr('*', 'posexplode(split(s, \"\")) AS (p{number}, e{number})')",
                    f"df = df.selectExpr('*', 'stack(2, k, i) AS e{number}')",
                ])  # fmt: skip
            case "sql":
                text = self.one([
                    f"SELECT *, {self.expression()} AS c{number} FROM v{number} "
                    f"WHERE {self.one(of.CONDITIONS)}",
                    f"WITH c AS (SELECT * FROM v{number} WHERE k > 0) "
                    f"SELECT * FROM c UNION ALL SELECT * FROM v{number}",
                    f"SELECT * FROM v{number} LATERAL VIEW explode(array(k, i)) l AS l{number}",
                    f"SELECT v.*, w.name AS n{number} FROM v{number} v "
                    "LEFT JOIN few w ON v.k = w.k AND v.i > 0",
                    f"SELECT * FROM v{number} WHERE k IN (SELECT k FROM few) OR g = 'a'",
                ])  # fmt: skip
                return f"df.createOrReplaceTempView('v{number}')\ndf = spark.sql({text!r})"
            case "pipe":
                text = self.one([
                    f"FROM v{number} |> WHERE {self.one(of.CONDITIONS)}",
                    f"FROM v{number} |> EXTEND {self.expression()} AS c{number}",
                    f"FROM v{number} |> SET i = i + 1 |> WHERE i > 0",
                ])  # fmt: skip
                return f"df.createOrReplaceTempView('v{number}')\ndf = spark.sql({text!r})"
            case "function":
                return self.one(self.functions())
            case "spread":
                return self.one([
                    "df = df.repartition(3)", "df = df.repartition(2, 'g')", "df = df.coalesce(1)",
                    "df = df.hint('rebalance')",
                ])  # fmt: skip
            case "observe":
                metrics = "F.count('*').alias('n'), F.max('i').alias('i'), F.sum('k').alias('k')"
                return f"df = df.observe('o{number}', {metrics})"
        return self.one(["df = df.dropna(subset=['k'])", "df = df.fillna({'i': 0, 's': '?'})",
                         "df = df.replace('a', 'c', 'g')"])  # fmt: skip

    def functions(self) -> list[str]:
        steps = [
            "df = df.withColumn('s', functions.turned('s'))",
            "df = df.withColumn('i', functions.doubled('i'))",
        ]
        # Python batches lose a watermark, and cannot have columns of some types.
        if not self.lines_have("withWatermark", "parse_json", "INTERVAL", "TIMESTAMP'"):
            steps += [
                "df = df.mapInArrow(functions.without_threes, df.schema)",
                "df = df.mapInPandas(functions.every_other, df.schema)",
            ]
        return steps

    def join(self) -> str:
        table = self.one(["few", "few", "computed", "empty"])
        hint = self.one(["broadcast", "merge", "shuffle_hash", "shuffle_replicate_nl"])
        kind = self.one(["inner", "left", "left_semi", "left_anti"])
        number = next(self.numbers)
        other = f"spark.table({table!r}).withColumnsRenamed({{'name': 'n{number}'}})"
        if self.chance(4):
            return f"df = {other}.join(df, 'k', {self.one(['inner', 'right'])!r})"
        return f"df = df.join({other}.hint({hint!r}), 'k', {kind!r})"

    def deduplicate(self) -> None:
        steps = ["df = df.drop('p').distinct()" if self.nested else "df = df.distinct()"]
        # Which of several rows with one key stays depends on their order.
        if self.rows_are_in_order:
            steps += [
                "df = df.dropDuplicates(['k', 'g'])",
                "df = df.dropDuplicates(['k'])",
                "df = df.dropDuplicates(['t', 'k'])",
                "df = df.dropDuplicates(['d', 'm'])",
            ]
        if self.watermark and self.rows_are_in_order:
            steps += [
                "df = df.dropDuplicatesWithinWatermark(['k'])",
                "df = df.dropDuplicatesWithinWatermark(['g', 'b'])",
            ]
        line = self.one(steps)
        if "drop('p')" in line:
            self.kinds.add("no map")
        if "distinct()" not in line:
            self.kinds.add("ordered")
        self.add(line)

    def expression(self) -> str:
        choices = of.EXPRESSIONS
        if self.nested:
            nested = [each for each in of.NESTED_EXPRESSIONS if "explode" not in each]
            choices += tuple(
                each for each in nested if "no map" not in self.kinds or not _has_map(each)
            )
        if self.chance(25):
            choices = of.RISKY_EXPRESSIONS
        text = self.one(choices)
        if "parse_json" in text:
            self.kinds.add("variant")
        return text

    def project(self) -> None:
        match self.one(["all", "some", "some", "sql"]):
            case "some":
                names = [
                    f"{self.expression()} AS c{number}"
                    for number in range(self.draw(st.integers(2, 8)))
                ]
                self.add(f"df = df.selectExpr({', '.join(map(repr, names))})")
            case "sql":
                self.add("df.createOrReplaceTempView('last')")
                columns = f"{self.expression()} AS c0, {self.expression()} AS c1"
                text = f"SELECT {columns} FROM last WHERE {self.one(of.CONDITIONS)}"
                self.add(f"df = spark.sql({text!r})")

    def aggregate(self) -> list[str]:
        """Add an aggregation and what may follow it; return the output modes that allow it."""
        functions = list(of.AGGREGATES)
        if self.nested:
            functions += of.NESTED_AGGREGATES
        chosen = self.some(functions, 2, 7)
        if self.chance(5):
            chosen += self.some(of.ROUNDED_AGGREGATES, 1, 2)
            self.kinds.add("rounded")
        if self.chance(6) and self.rows_are_in_order:
            chosen += self.some(of.ORDERED_AGGREGATES, 1, 2)
            self.kinds.add("ordered")
        results = ", ".join(f"{each} AS a{number}" for number, each in enumerate(chosen))
        by_window = self.chance(2)
        keys = self.one([*of.KEYS, *(of.NESTED_KEYS if self.nested else ())])
        if by_window:
            window = self.one(of.WINDOWS)
            keys = self.one([window, f"{window}, {keys}"])
        plain = not by_window and "(" not in keys and "%" not in keys and " AS " not in keys
        self.add("df.createOrReplaceTempView('grouped')")
        match self.one(["group", "group", "group", "all", "rollup", "having"]):
            case "all":
                text = f"SELECT {results} FROM grouped"
                by_window = False
            case "rollup" if plain:
                sets = self.one(
                    [f"ROLLUP ({keys})", f"CUBE ({keys})", f"GROUPING SETS (({keys}), ())"]
                )
                text = (
                    f"SELECT {keys}, grouping_id() AS gid, {results} FROM grouped GROUP BY {sets}"
                )
            case "having":
                text = f"SELECT {keys}, {results} FROM grouped GROUP BY {_unnamed(keys)} HAVING count(*) > 1"
            case _:
                text = f"SELECT {keys}, {results} FROM grouped GROUP BY {_unnamed(keys)}"
        self.add(f"df = spark.sql({text!r})")
        modes = [UPDATE, COMPLETE]
        self.closes_groups = by_window
        if self.watermark and by_window:
            modes.append(APPEND)
        if self.chance(3):
            self.add(self.one([
                "df = df.where('a0 IS NOT NULL')",
                "df = df.withColumn('more', F.expr('cast(a0 AS string)'))",
                "df = df.withColumn('more', F.hash('a0'))",
                "df = df.crossJoin(spark.table('computed'))",
            ]))  # fmt: skip
        if self.chance(4):
            self.add(
                self.one(
                    ["df = df.orderBy(F.hash('a0'), 'a0')", "df = df.orderBy('a0').limit(1000)"]
                )
            )
            modes = [COMPLETE]
        return modes

    # -- drawing ----------------------------------------------------------------------------------

    def add(self, line: str) -> None:
        self.lines.append(line)

    @property
    def rows_are_in_order(self) -> bool:
        """True if the rows of a batch are in the order of their file, on both engines."""
        return not self.lines_have(
            "partition", "rebalance", "union", "UNION", "merge", "shuffle", "JOIN", "SELECT k"
        )

    def lines_have(self, *texts: str) -> bool:
        return any(text in line for text in texts for line in self.lines)

    def one(self, choices: Sequence[str]) -> str:
        return self.draw(st.sampled_from(choices))

    def some(self, choices: Sequence[str], least: int, most: int) -> list[str]:
        texts = st.lists(st.sampled_from(choices), min_size=least, max_size=most, unique=True)
        return self.draw(texts)

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(1, one_in)) == one_in


def _unnamed(keys: str) -> str:
    return keys.split(" AS ")[0]


def _has_map(expression: str) -> bool:
    return re.search(r"\bp\b", expression) is not None
