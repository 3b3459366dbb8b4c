"""Topics and consumer groups beside brokers."""
