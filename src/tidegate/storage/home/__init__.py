"""The home folder of an instance: takes its path, returns the paths in it, keeps version, token and locks."""
