"""Child processes of `tidegate up`: started, watched, restarted, stopped."""
