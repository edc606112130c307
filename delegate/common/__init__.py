"""What knows nothing of models and backends: files, fields, warnings, signals, tables of text, output of libraries."""
