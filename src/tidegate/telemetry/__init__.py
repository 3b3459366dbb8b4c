"""Telemetry: takes events of the running server, gives metrics, log lines and traces, keeps counts.

`metric_families` is the table of all metrics, `metrics` counts them, `logs` writes lines without secrets,
`tracing` makes spans. No request depends on it, so a failure in here must not fail one.
"""
