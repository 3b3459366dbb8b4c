"""One file a revision, named r<number>_<what>.py; a released one is never edited."""
