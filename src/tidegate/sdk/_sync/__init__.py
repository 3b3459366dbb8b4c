"""The client that blocks: takes calls, gives answers, keeps one connection pool.

Made from _async/__init__.py by scripts/generate_sdk.py: change that one, and run it again.
"""
