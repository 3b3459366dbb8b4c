"""The Python client: takes calls, gives answers and our own errors, keeps one connection pool per client.

`_async/` is written by hand; `_sync/` is generated from it by scripts/generate_sdk.py. `blocking/` holds the
two modules that exist in both forms by hand. What neither waits nor sends is shared, in modules of its own:
requests, retries, leases, messages of live queries.
"""
