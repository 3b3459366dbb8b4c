"""`tidegate sql`: one statement, a script, or the prompt."""
