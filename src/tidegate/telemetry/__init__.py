"""Watching: takes what the running parts say of themselves, gives metrics, log lines and spans, keeps counts.

`families` is the table of all metrics, `metrics` counts them, `logs` writes lines in which no secret stands,
`tracing` makes spans. Nothing here is needed to serve a request, so nothing here may stop one.
"""
