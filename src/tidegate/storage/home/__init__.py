"""The home folder: layout and version, locks, the server's address, upgrades, files of pipelines."""
