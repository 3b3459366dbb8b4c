"""Child processes that run statements: channels, the fork server, the pool."""
