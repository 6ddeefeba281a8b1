"""Functions that the editor completes: DuckDB's most used ones that the console answers."""

from __future__ import annotations

FUNCTIONS = (
    "abs", "any_value", "approx_count_distinct", "arg_max", "arg_min", "array_length", "avg", "bool_and",
    "bool_or", "ceil", "coalesce", "concat", "contains", "corr", "count", "date_diff", "date_trunc", "day",
    "dense_rank", "ends_with", "epoch", "exp", "extract", "first", "first_value", "floor", "greatest", "hour",
    "ifnull", "json_extract", "json_extract_string", "lag", "last", "last_value", "lead", "least", "len",
    "length", "levenshtein", "list", "list_aggregate", "list_contains", "list_distinct", "list_filter",
    "list_slice", "list_sort", "list_sum", "list_transform", "ln", "log10", "lower", "max", "mean", "median",
    "min", "minute", "mode", "month", "ntile", "nullif", "percent_rank", "quantile_cont", "quantile_disc",
    "rank", "regexp_extract", "regexp_matches", "regexp_replace", "replace", "round", "row_number", "sqrt",
    "starts_with", "stddev", "stddev_pop", "strftime", "string_agg", "string_split", "substring", "sum", "trim",
    "unnest", "upper", "variance", "year",
)  # fmt: skip
"""Names, by alphabet."""
