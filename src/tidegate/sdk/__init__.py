"""The Python door: takes calls, gives answers and our own errors, keeps one connection pool a client.

`asynchronous/` is written by hand; `synchronous/` is made from it by scripts/generate_sdk.py. What needs no
waiting is shared and stands beside them: what a request is, what may be tried again, what an answer means.
"""
