"""Output of commands: tables that fit the terminal, values as text, errors with what to do next."""
