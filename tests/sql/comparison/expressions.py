"""What a query may compute: expressions, conditions and aggregates over the columns of :mod:`inputs`.

Each is SQL text. Those in ``NESTED_...`` need a column that a CSV file cannot have.
"""

from __future__ import annotations

EXPRESSIONS = (
    "k", "g", "i", "h", "d", "f", "m", "w", "s", "b", "y", "t", "z", "k + 1", "i * 2 - k", "i DIV 2",
    "i % 3", "-d", "d / 2", "d + f", "m * 2", "m + w", "m / 3", "w * 3", "cast(m AS decimal(20,5))",
    "cast(d AS string)", "cast(i AS double)", "cast(i AS string)", "try_cast(s AS int)",
    "try_cast(s AS date)", "cast(t AS date)", "cast(t AS timestamp_ntz)", "round(m, 1)", "bround(d, 1)",
    "abs(i)", "pmod(i, 5)", "greatest(k, i)", "least(d, f)", "nanvl(d, 7)", "nullif(k, 1)",
    "coalesce(k, i, -1)", "ifnull(g, 'none')", "if(b, s, g)", "b AND k > 1", "k <=> 1",
    "CASE WHEN i > 5 THEN 'big' WHEN i IS NULL THEN NULL ELSE 'small' END", "upper(s)", "length(s)",
    "reverse(s)", "substr(s, 2)", "concat(s, g)", "concat_ws('-', s, g, k)",
    "regexp_replace(s, '[a-z]', '_')", "split(s, ' ')", "lpad(s, 4, '*')", "trim(s)", "ascii(s)",
    "md5(s)", "sha2(s, 256)", "hash(k, s)", "xxhash64(d, m)", "base64(encode(s, 'UTF-8'))",
    "s LIKE '%a%'", "s COLLATE UNICODE_CI = 'A'", "translate(s, 'ab', 'xy')", "initcap(s)",
    "format_number(i, 2)", "year(y)", "date_add(y, 3)", "date_trunc('hour', t)",
    "date_format(t, 'yyyy-MM-dd HH:mm')", "unix_micros(t)", "datediff(y, DATE'2024-01-01')",
    "t + INTERVAL 1 DAY", "z - INTERVAL '02:00' HOUR TO MINUTE", "timestampadd(MINUTE, k, t)",
    "last_day(y)", "t - TIMESTAMP'2024-02-29 00:00:00'", "window(t, '5 minutes')",
    "window(z, '10 minutes', '5 minutes').start", "make_date(2024, k + 1, 1)", "array(k, i)",
    "struct(k, s)", "named_struct('n', k, 'o', d)", "map('k', k, 'i', i)",
    "to_json(struct(k, s, m, t))", "from_json(concat('{\"j\":', k, '}'), 'j INT')", "sequence(0, k)",
    "array_repeat(g, 2)", "typeof(m)", "current_date() > DATE'2020-01-01'", "CAST(NULL AS int)", "1",
    "'x'", "version() = ''", "hex(i)", "bin(k)", "bit_count(k)", "shiftleft(k, 2)", "isnan(d)", "d = f",
    "array_sort(array(i, k, 1))", "parse_json('{\"a\": 1}')", "turned(s)", "doubled(i)",
    "upper_arrow(g)", "make_ym_interval(1, k)", "make_interval(0, 0, 0, k)", "make_time(1, 2, 3)",
    "named_struct('n', k, 'n', i)", "length(uuid())", "rand() < 1", "current_timestamp() > t",
    "try_divide(i, k)", "try_add(h, h)", "i BETWEEN 1 AND 4", "k IN (1, 2, NULL)", "g IN ('a')",
)  # fmt: skip
NESTED_EXPRESSIONS = (
    "x", "a", "p", "r", "r.q", "r.v", "p['u']", "try_element_at(a, 1)", "size(a)",
    "array_contains(a, 1)", "transform(a, e -> e + 1)", "filter(a, e -> e > 1)",
    "exists(a, e -> e IS NULL)", "array_distinct(a)",
    "aggregate(a, 0, (acc, e) -> acc + coalesce(e, 0))", "forall(a, e -> e < 3)",
    "zip_with(a, a, (l, m) -> l + m)", "transform_values(p, (n, e) -> e * 2)",
    "map_filter(p, (n, e) -> e > 0)", "map_keys(p)", "map_entries(p)", "array_join(a, ',', 'null')",
    "flatten(array(a, a))", "slice(a, 1, 2)", "sort_array(a, false)", "to_json(p)", "hex(x)",
    "concat(x, x)", "cast(x AS string)", "length(x)", "array_max(a)", "arrays_zip(a, a)",
    "cardinality(p)", "struct(r, a)", "map_concat(p, map('zz', 1))",
    "cast(r AS struct<q:bigint,v:string>)", "explode_outer(a)",
)  # fmt: skip
RISKY_EXPRESSIONS = (
    "i / k", "i DIV k", "cast(s AS int)", "cast(i AS tinyint) * cast(100 AS tinyint)",
    "cast(h AS tinyint)", "element_at(array(1), k)", "array(1, 2)[k]", "to_date(s)",
    "cast(w * 1000000000 AS int)", "raise_error(s)", "assert_true(k IS NULL OR k < 3)", "failing(k)",
    "to_timestamp(s, 'yyyy-MM-dd')",
)  # fmt: skip
"""Expressions that fail for some rows."""

CONDITIONS = (
    "k > 1", "g = 'a'", "i % 3 <> 0 OR g IS NULL", "s LIKE '%a%'", "b", "NOT b", "d > 0", "isnan(d)",
    "m < 1000", "y >= DATE'2024-02-29'", "k IS NOT NULL AND g IS NOT NULL", "length(s) > 1",
    "k IN (0, 2)", "k IN (SELECT k FROM few)", "EXISTS (SELECT 1 FROM few WHERE few.k = 1)",
    "i > (SELECT min(k) FROM few)", "turned(s) <> s", "k = 77", "t >= TIMESTAMP'2024-02-29 12:00:00Z'",
    "true", "hash(i) % 2 = 0", "k NOT IN (SELECT k FROM few WHERE k IS NOT NULL)", "d <=> f",
)  # fmt: skip
EMPTY_CONDITIONS = (
    "false", "k > 1 AND k < 1", "k IS NULL AND k = 1",
)  # fmt: skip
"""Conditions that the optimizer proves to hold for no row."""

AGGREGATES = (
    "count(*)", "count(k)", "count(k, g)", "count_if(b)", "sum(i)", "sum(k)", "sum(h)", "sum(m)",
    "sum(w)", "sum(d)", "avg(i)", "avg(d)", "avg(m)", "avg(w)", "min(d)", "max(d)", "min(s)", "max(s)",
    "max(m)", "min(y)", "max(t)", "min(z)", "max(b)", "bool_and(b)", "bool_or(b)", "bit_xor(k)",
    "bit_and(i)", "bit_or(h)", "max(struct(k, s))", "min(struct(d, i))", "max_by(s, struct(i, s))",
    "min_by(k, struct(i, k))", "collect_set(g)", "array_sort(collect_list(i))",
    "array_sort(collect_set(s))", "array_sort(collect_list(struct(k, g)))",
    "any_value(g) IS NULL OR true", "approx_count_distinct(s)", "approx_percentile(i, 0.5)",
    "percentile(i, array(0.25, 0.75))", "percentile(d, 0.5)", "median(i)",
    "mode() WITHIN GROUP (ORDER BY k, true)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY i)",
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY i DESC)", "sum(i) FILTER (WHERE b)",
    "count(*) FILTER (WHERE k > 1)", "max(s) FILTER (WHERE g = 'a')",
    "array_sort(collect_list(k) FILTER (WHERE b))", "sum(i + 1) * 2", "max(i) - min(i)", "sum(i) > 10",
    "max(upper(s))", "sum(if(b, 1, 0))", "try_sum(h)", "try_avg(i)",
    "hll_sketch_estimate(hll_sketch_agg(i))", "histogram_numeric(i, 3)", "regr_count(i, k)",
    "listagg(g, ',') WITHIN GROUP (ORDER BY g)", "max(turned(s))", "sum(doubled(i))",
)  # fmt: skip
NESTED_AGGREGATES = (
    "max(r)", "min(a)", "max(struct(r, k))", "array_sort(collect_set(r))",
    "array_sort(collect_list(a))", "sum(r.q)", "max(x)", "count(p)", "sum(size(a))",
    "bitmap_count(bitmap_construct_agg(bitmap_bit_position(r.q)))",
)  # fmt: skip
DISTINCT_AGGREGATES = (
    "count(DISTINCT k)", "count(DISTINCT k, g)", "sum(DISTINCT i)", "avg(DISTINCT i)",
    "count(DISTINCT s) FILTER (WHERE b)", "sum(DISTINCT m)", "avg(DISTINCT m)", "avg(DISTINCT w)",
    "count(DISTINCT d)", "array_sort(collect_list(DISTINCT g))",
)  # fmt: skip
ROUNDED_AGGREGATES = (
    "stddev(i)", "variance(d)", "stddev_pop(f)", "skewness(i)", "kurtosis(i)", "corr(i, k)",
    "covar_pop(i, d)", "avg(f)", "regr_slope(i, k)", "sum(cast(w AS double))", "avg(cast(w AS double))",
)  # fmt: skip
"""Aggregates of floating point numbers: the order of the rows may change the last digits."""
ORDERED_AGGREGATES = (
    "first(i)", "last(s)", "first(k, true)", "collect_list(i)", "last(d, true)", "listagg(s)",
)  # fmt: skip
"""Aggregates that depend on the order of the rows."""

KEYS = (
    "k", "g", "k, g", "k % 2", "b", "y", "m", "d", "upper(s)", "date_trunc('hour', t)", "z", "k, y, b",
    "length(s) AS l",
)  # fmt: skip
NESTED_KEYS = (
    "r", "a", "struct(k, g)", "x", "r.v, k", "size(a)",
)  # fmt: skip
WINDOWS = (
    "window(t, '5 minutes')", "window(t, '10 minutes', '5 minutes')",
    "window(t, '1 hour', '1 hour', '7 minutes')", "window(t, '6 minutes', '4 minutes')",
)  # fmt: skip
