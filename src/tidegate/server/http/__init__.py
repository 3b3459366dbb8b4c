"""HTTP: takes connections, returns responses: protocol, router, authentication, admission, TLS."""
