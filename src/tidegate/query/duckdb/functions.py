"""The functions of DuckDB that a statement may call: those that compute values from their arguments.

A function that is on no list is not available, so that a new version of DuckDB cannot make more available.
The lists together have every function of the pinned DuckDB (`tests/query/duckdb/test_functions.py`). Names
are compared in small letters and without their schema: `x.upper()` is a call of upper with the schema x.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from tidegate.errors import SqlUnsupported
from tidegate.model.names import shorten
from tidegate.query.duckdb.names import Node

# Table functions that compute rows from their arguments. All others read files, settings or other queries.
TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
)

_OPERATORS = """
!= !__postfix !~~ !~~* % & && * ** + - -> ->> / // < <-> << <= <=> <@ = > >= >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
add divide factorial ilike_escape like_escape mod multiply not_ilike_escape not_like_escape pow power subtract
timezone xor
"""
_NUMBERS = """
abs acos acosh asin asinh atan atan2 atanh bit_count bit_length bit_position bitstring cbrt ceil ceiling cos
cosh cot degrees even exp fdiv floor fmod gamma gcd get_bit greatest greatest_common_divisor isfinite isinf
isnan lcm least least_common_multiple lgamma ln log log10 log2 nextafter pi radians random round round_even
roundbankers set_bit setseed sign signbit sin sinh sqrt tan tanh to_base trunc
"""
_TEXTS = """
array_to_string array_to_string_comma_default ascii bar base64 bin char_length character_length chr concat
concat_ws contains damerau_levenshtein decode editdist3 encode ends_with format formatreadabledecimalsize
formatreadablesize format_bytes from_base64 from_binary from_hex hamming hash hex instr jaccard
jaro_similarity jaro_winkler_similarity lcase left left_grapheme len length length_grapheme levenshtein lower
lpad ltrim md5 md5_number md5_number_lower md5_number_upper mismatches nfc_normalize octet_length ord overlay
parse_dirname parse_dirpath parse_filename parse_formatted_bytes parse_path path_join position prefix printf
regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
regexp_split_to_array regexp_split_to_table repeat replace reverse right right_grapheme rpad rtrim sha1 sha256
split split_part starts_with str_split str_split_regex string_split string_split_regex string_to_array
strip_accents strlen strpos substr substring substring_grapheme suffix to_base64 to_binary to_hex translate
trim ucase unbin unhex unicode upper url_decode url_encode
"""
_TIMES = """
age ago century current_date current_localtime current_localtimestamp date_add date_diff date_part date_sub
date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade
epoch epoch_ms epoch_ns epoch_us era get_current_time get_current_timestamp hour isodow isoyear julian
last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz microsecond
millennium millisecond minute month monthname nanosecond now quarter second strftime strptime time_bucket
timezone_hour timezone_minute to_centuries to_days to_decades to_hours to_microseconds to_millennia
to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years today
transaction_timestamp try_strptime week weekday weekofyear year yearweek
"""
_VALUES = """
alias assert_true can_cast_implicitly cast_to_type constant_or_null current_role current_user enum_code
enum_first enum_last enum_range enum_range_boundary equi_width_bins error gen_random_uuid if
is_histogram_other_bin nullif replace_type session_user switch typeof user uuid uuid_extract_timestamp
uuid_extract_version uuidv4 uuidv7
"""
_LISTS = """
aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
array_indexof array_inner_product array_intersect array_length array_negative_dot_product
array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice
array_sort array_transform array_unique array_value array_where array_zip cardinality element_at filter
flatten generate_series generate_subscripts grade_up invoke list_aggr list_aggregate list_any_value
list_append list_apply list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor
list_bool_and list_bool_or list_cat list_concat list_contains list_cosine_distance list_cosine_similarity
list_count list_distance list_distinct list_dot_product list_element list_entropy list_extract list_filter
list_first list_grade_up list_has list_has_all list_has_any list_histogram list_indexof list_inner_product
list_intersect list_kurtosis list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode
list_negative_dot_product list_negative_inner_product list_pack list_position list_prepend list_product
list_reduce list_resize list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort
list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop
list_var_samp list_where list_zip map map_concat map_contains map_contains_entry map_contains_value
map_entries map_extract map_extract_value map_from_entries map_keys map_values range reduce row struct_concat
struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys
struct_pack struct_position struct_update struct_values union_extract union_tag union_value unnest
unpivot_list
"""
_JSON = """
array_to_json from_json from_json_strict json json_array json_array_length json_contains json_deep_merge
json_exists json_extract json_extract_path json_extract_path_text json_extract_string json_group_array
json_group_object json_group_structure json_insert json_keys json_merge_patch json_merge_patch_diff
json_normalize json_object json_pretty json_quote json_remove json_replace json_set json_strip_nulls
json_structure json_transform json_transform_strict json_type json_valid json_value row_to_json to_json
variant_array_length variant_contains variant_exists variant_extract variant_extract_string
variant_group_array variant_keys variant_type variant_typeof
"""
_AGGREGATES = """
any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last
arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg binom bit_and bit_or bit_xor bitstring_agg
bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy favg first fsum geomean
geometric_mean group_concat histogram histogram_exact kahan_sum kurtosis kurtosis_pop last list listagg lttb
mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy
regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev
stddev_pop stddev_samp string_agg sum sumkahan var_pop var_samp variance wavg weighted_avg
"""
_WINDOWS = """
cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense
row_number
"""

AGGREGATES = frozenset(_AGGREGATES.split())
FUNCTIONS = AGGREGATES.union(
    *(names.split() for names in (_OPERATORS, _NUMBERS, _TEXTS, _TIMES, _VALUES, _LISTS, _JSON, _WINDOWS))
)

_OF_CATALOG = "it shows what DuckDB holds inside, not your tables"
_OF_SERVER = "it shows the server or its settings"
_OF_FILES = "it reads or writes files"
_OF_OTHERS = "it shows or changes what lasts longer than the statement"
_OF_QUERIES = "it runs or reads statements that are not checked"
_INTERNAL = "it is a part of DuckDB that is not meant to be called"
_GEOMETRY = "there are no columns of geometry"

# Why each of the other functions of DuckDB is not available.
REFUSED: Mapping[str, str] = {
    name: reason
    for reason, names in {
        _OF_CATALOG: """current_catalog current_database current_schema current_schemas in_search_path
            get_block_size stats vector_type col_description obj_description shobj_description format_type
            format_pg_type map_to_pg_oid seq_scan summary histogram_values which_secret""",
        _OF_SERVER: """current_setting current_connection_id current_transaction_id current_query
            current_query_id txid_current version sleep_ms write_log parse_duckdb_log_message enable_logging
            disable_logging truncate_duckdb_logs enable_profiling disable_profiling checkpoint
            force_checkpoint icu_calendar_names test_all_types test_vector_types""",
        _OF_FILES: """glob sniff_csv hive_partition_component arrow_scan arrow_scan_dumb pandas_scan
            python_arrow_scan python_map_function""",
        _OF_OTHERS: """getvariable nextval currval setval create_external_resource
            deregister_external_resource destroy_external_resource register_external_resource
            register_external_resource_type""",
        _OF_QUERIES: """query query_table json_serialize_sql json_serialize_plan json_deserialize_sql
            json_execute_serialized_sql""",
        _INTERNAL: """bitstring_byte_comparable timetz_byte_comparable combine combine_aggr finalize
            to_aggregate_state create_sort_key index_key icu_sort_key decimal_average decimal_division
            get_type make_type json_copy_strftime_if_date json_copy_strftime_if_timestamp normalized_interval
            remap_struct sum_no_overflow variant_bytes_to_variant variant_comparator variant_group_object
            variant_normalize variant_to_parquet_variant""",
        _GEOMETRY: "vertex_extract",
    }.items()
    for name in names.split()
} | {"is distinct from": _INTERNAL, "is not distinct from": _INTERNAL}

# The same for whole families, by the beginning of the name.
REFUSED_FAMILIES: Mapping[str, str] = {
    "__": _INTERNAL,
    "collate_": "it is written x COLLATE name",
    "icu_collate_": "it is written x COLLATE name",
    "duckdb_": _OF_CATALOG,
    "has_": _OF_CATALOG,
    "inet_": _OF_SERVER,
    "parquet_": _OF_FILES,
    "pg_": _OF_CATALOG,
    "pragma_": _OF_SERVER,
    "read_": _OF_FILES,
    "st_": _GEOMETRY,
}

# Functions that call an aggregate by a name in a text, which is their second argument.
_BY_NAME = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
# DuckDB calls a function for a column of this name that is in no table.
_COLUMNS_REFUSED = frozenset({"current_catalog", "current_schema"})
_NEAR_MAX = 3


class FunctionMissing(Exception):
    """A statement calls a function that DuckDB does not have; `start` and `length` are counted in bytes."""

    def __init__(self, node: Node) -> None:
        name = str(node.get("function_name", ""))
        near = get_close_matches(name.lower(), sorted(FUNCTIONS), n=_NEAR_MAX)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"there is no function {shorten(name)}().{guess}")
        self.start = int(node.get("query_location", 0))
        self.length = int(node.get("query_location_length", 0))


def check_table_function(name: str) -> None:
    """Raise SqlUnsupported for a function that may not be in FROM."""
    if name.lower() not in TABLE_FUNCTIONS:
        hint = "Read tables: FROM <namespace>.<table>, or FROM lake.<name>."
        raise SqlUnsupported(reason=f"The table function {shorten(name)}() is not available here.", hint=hint)


def check_call(node: Node) -> None:
    """Raise SqlUnsupported for a call that is not allowed, and FunctionMissing for one of no function."""
    lower = str(node.get("function_name", "")).lower()
    if lower not in FUNCTIONS:
        raise _refusal(node)
    if node.get("export_state"):
        raise SqlUnsupported(reason=f"EXPORT_STATE of {lower}() is not available here.")
    if lower in _BY_NAME:
        _check_named_aggregate(node)


def check_column(names: list[Any]) -> None:
    """Raise SqlUnsupported for a name of a column that DuckDB may take for the call of a function."""
    if len(names) == 1 and str(names[0]).lower() in _COLUMNS_REFUSED:
        hint = "A column of this name is read with its table: t.current_schema."
        raise SqlUnsupported(reason=f"{str(names[0]).lower()} is not available here.", hint=hint)


def _check_named_aggregate(node: Node) -> None:
    """Raise SqlUnsupported unless the aggregate is a text in the statement, with an allowed name.

    It is the second argument. In x.list_aggregate('sum') the list is not among the arguments, and x may be
    a column or a schema: then every argument has to be a name.
    """
    arguments = node.get("arguments") or []
    places = arguments if node.get("schema") else arguments[1:2]
    names = [_text_of(argument) for argument in places]
    if not names or any(name is None or name.lower() not in AGGREGATES for name in names):
        caller = node["function_name"]
        hint = f"Write {caller}(list, 'sum'), with the name of an aggregate in quotes."
        raise SqlUnsupported(reason=f"This call of {caller}() is not available here.", hint=hint)


def _text_of(argument: Any) -> str | None:
    """Return the text that an argument is; None where it is anything else, or has a name."""
    literal = argument["expression"].get("literal")
    if argument.get("name") or not isinstance(literal, dict) or literal.get("kind") != "STRING":
        return None
    return str(literal["text"])


def _refusal(node: Node) -> Exception:
    name = str(node.get("function_name", ""))
    lower = name.lower()
    reason = REFUSED.get(lower) or next(
        (why for start, why in REFUSED_FAMILIES.items() if lower.startswith(start)), None
    )
    if reason is None and lower not in TABLE_FUNCTIONS:
        return FunctionMissing(node)
    why = reason or "it belongs into FROM"
    return SqlUnsupported(reason=f"The function {shorten(name)}() is not available here: {why}.")
