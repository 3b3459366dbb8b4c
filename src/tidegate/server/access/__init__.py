"""Who may come in: takes tokens and requests, gives the caller or a refusal, keeps counts in memory."""
