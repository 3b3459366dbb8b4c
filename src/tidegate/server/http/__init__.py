"""HTTP: takes connections, returns responses: protocol, router, idempotency keys, TLS."""
