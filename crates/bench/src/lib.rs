//! Load, comparison and demo: throw-away clusters, pgbench direct and pooled, tables
