"""Tables, streams and live queries beside databases and brokers."""
