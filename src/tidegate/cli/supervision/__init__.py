"""Supervision: takes commands of child processes, keeps them running, and gives their states."""
