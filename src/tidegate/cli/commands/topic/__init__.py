"""`tidegate topic`: definitions, messages, consumer groups, dead letters."""
