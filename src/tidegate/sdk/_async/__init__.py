"""The client: takes calls, gives answers or raises our errors, keeps a pool of connections."""
