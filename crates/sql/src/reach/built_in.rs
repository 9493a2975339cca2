//! The names that a text may call and still only read: functions that PostgreSQL brings along, in
//! alphabetical order.
//!
//! A built-in function is listed if none of its overloads is volatile in any supported version, or if it is
//! volatile only because its result differs from call to call (`random`). Listed functions wait for no lock
//! of another transaction and run no user's code. Not listed are functions that only PostgreSQL itself calls,
//! functions that run SQL, and functions that build values of a row type (`json_populate_record`): a domain
//! among its columns may run anything. A test compares the list with every installed version.

/// Words that can precede `(` without a call of a function, or that call only something of the grammar
/// itself.
#[rustfmt::skip]
pub(super) const KEYWORDS: &[&str] = &[
    "all", "and", "any", "array", "as", "between", "by", "case", "cast", "character", "coalesce", "cube",
    "current_time", "current_timestamp", "dec", "decimal", "distinct", "else", "escape", "except", "exists",
    "fetch", "filter", "from", "greatest", "group", "grouping", "having", "ilike", "in", "intersect", "is",
    "join", "lateral", "least", "like", "limit", "localtime", "localtimestamp", "materialized", "nchar",
    "not", "nullif", "offset", "on", "or", "order", "over", "rollup", "row", "select", "sets", "similar",
    "some", "then", "to", "trim", "union", "using", "values", "varying", "when", "where", "window",
    "within",
];

/// Functions, and type names that take arguments (`numeric(10, 2)`).
#[rustfmt::skip]
pub(super) const FUNCTIONS: &[&str] = &[
    "abbrev", "abs", "acos", "acosd", "acosh", "age", "any_value", "array_agg", "array_append",
    "array_dims", "array_fill", "array_length", "array_lower", "array_ndims", "array_position",
    "array_positions", "array_prepend", "array_remove", "array_replace", "array_reverse", "array_sample",
    "array_shuffle", "array_sort", "array_to_json", "array_to_string", "array_to_tsvector", "array_upper",
    "ascii", "asin", "asind", "asinh", "atan", "atan2", "atan2d", "atand", "atanh", "avg", "bit", "bit_and",
    "bit_count", "bit_length", "bit_or", "bit_xor", "bool", "bool_and", "bool_or", "bpchar", "bytea",
    "cardinality", "casefold", "cbrt", "ceil", "ceiling", "char", "char_length", "character_length", "chr",
    "cidr", "clock_timestamp", "concat", "concat_ws", "corr", "cos", "cosd", "cosh", "cot", "cotd", "count",
    "covar_pop", "covar_samp", "crc32", "crc32c", "cume_dist", "current_database", "current_query",
    "current_schema", "current_setting", "current_user", "date", "date_add", "date_bin", "date_part",
    "date_subtract", "date_trunc", "datemultirange", "daterange", "decode", "degrees", "dense_rank", "div",
    "encode", "enum_first", "enum_last", "enum_range", "every", "exp", "extract", "factorial", "family",
    "first_value", "float4", "float8", "floor", "format", "format_type", "gamma", "gcd", "gen_random_uuid",
    "generate_series", "generate_subscripts", "get_bit", "get_byte", "get_current_ts_config", "host",
    "hostmask", "inet_client_addr", "inet_client_port", "inet_merge", "inet_same_family", "initcap", "int2",
    "int4", "int4multirange", "int4range", "int8", "int8multirange", "int8range", "interval",
    "is_normalized", "isempty", "isfinite", "json_agg", "json_agg_strict", "json_array_elements",
    "json_array_elements_text", "json_array_length", "json_build_array", "json_build_object", "json_each",
    "json_each_text", "json_extract_path", "json_extract_path_text", "json_object", "json_object_agg",
    "json_object_agg_strict", "json_object_agg_unique", "json_object_agg_unique_strict", "json_object_keys",
    "json_strip_nulls", "json_to_record", "json_to_recordset", "json_to_tsvector", "json_typeof",
    "jsonb_agg", "jsonb_agg_strict", "jsonb_array_elements", "jsonb_array_elements_text",
    "jsonb_array_length", "jsonb_build_array", "jsonb_build_object", "jsonb_each", "jsonb_each_text",
    "jsonb_extract_path", "jsonb_extract_path_text", "jsonb_insert", "jsonb_object", "jsonb_object_agg",
    "jsonb_object_agg_strict", "jsonb_object_agg_unique", "jsonb_object_agg_unique_strict",
    "jsonb_object_keys", "jsonb_path_exists", "jsonb_path_exists_tz", "jsonb_path_match",
    "jsonb_path_match_tz", "jsonb_path_query", "jsonb_path_query_array", "jsonb_path_query_array_tz",
    "jsonb_path_query_first", "jsonb_path_query_first_tz", "jsonb_path_query_tz", "jsonb_pretty",
    "jsonb_set", "jsonb_set_lax", "jsonb_strip_nulls", "jsonb_to_record", "jsonb_to_recordset",
    "jsonb_to_tsvector", "jsonb_typeof", "justify_days", "justify_hours", "justify_interval", "lag",
    "last_value", "lcm", "lead", "left", "length", "lgamma", "ln", "log", "log10", "lower", "lower_inc",
    "lower_inf", "lpad", "ltrim", "macaddr", "macaddr8", "macaddr8_set7bit", "make_date", "make_interval",
    "make_time", "make_timestamp", "make_timestamptz", "makeaclitem", "masklen", "max", "md5", "min",
    "min_scale", "mod", "mode", "money", "multirange", "name", "netmask", "network", "normalize", "now",
    "nth_value", "ntile", "num_nonnulls", "num_nulls", "numeric", "nummultirange", "numrange",
    "octet_length", "oid", "overlaps", "overlay", "parse_ident", "percent_rank", "percentile_cont",
    "percentile_disc", "pg_column_size", "pg_size_pretty", "pg_typeof", "phraseto_tsquery", "pi",
    "plainto_tsquery", "position", "pow", "power", "quote_ident", "quote_literal", "quote_nullable",
    "radians", "random", "random_normal", "range_agg", "range_intersect_agg", "range_merge", "rank",
    "regclass", "regexp_count", "regexp_instr", "regexp_like", "regexp_match", "regexp_matches",
    "regexp_replace", "regexp_split_to_array", "regexp_split_to_table", "regexp_substr", "regr_avgx",
    "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy",
    "regr_syy", "repeat", "replace", "reverse", "right", "round", "row_number", "row_to_json", "rpad",
    "rtrim", "scale", "session_user", "set_bit", "set_byte", "set_masklen", "setweight", "sha224", "sha256",
    "sha384", "sha512", "sign", "sin", "sind", "sinh", "split_part", "sqrt", "statement_timestamp",
    "stddev", "stddev_pop", "stddev_samp", "string_agg", "string_to_array", "string_to_table", "strip",
    "strpos", "substr", "substring", "sum", "system_user", "tan", "tand", "tanh", "text", "time",
    "timeofday", "timestamp", "timestamptz", "timetz", "timezone", "to_ascii", "to_bin", "to_char",
    "to_date", "to_hex", "to_json", "to_jsonb", "to_number", "to_oct", "to_regcollation", "to_regnamespace",
    "to_regoper", "to_regoperator", "to_regproc", "to_regprocedure", "to_regrole", "to_regtype",
    "to_regtypemod", "to_timestamp", "to_tsquery", "to_tsvector", "transaction_timestamp", "translate",
    "trim_array", "trim_scale", "trunc", "ts_delete", "ts_filter", "ts_headline", "ts_lexize", "ts_rank",
    "ts_rank_cd", "tsmultirange", "tsrange", "tstzmultirange", "tstzrange", "tsvector_to_array",
    "unicode_assigned", "unistr", "unnest", "upper", "upper_inc", "upper_inf", "uuid_extract_timestamp",
    "uuid_extract_version", "uuidv4", "uuidv7", "var_pop", "var_samp", "varbit", "varchar", "variance",
    "version", "websearch_to_tsquery", "width_bucket", "xml", "xml_is_well_formed",
    "xml_is_well_formed_content", "xml_is_well_formed_document", "xmlagg", "xmlcomment", "xmlexists",
    "xmltext", "xmlvalidate", "xpath", "xpath_exists",
];
