"""What a running server holds: stores, thread pools, waiters, background tasks."""
