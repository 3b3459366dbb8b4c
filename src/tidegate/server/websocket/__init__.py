"""Live queries over WebSocket: takes subscriptions, sends snapshots and changes."""
