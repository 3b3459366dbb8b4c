"""Pages for browsers: one-time links and the start page."""
