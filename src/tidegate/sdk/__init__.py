"""The Python door: takes calls, gives answers and our own errors, keeps one connection pool a client."""
