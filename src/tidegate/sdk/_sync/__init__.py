"""The client: takes calls, gives answers or raises our errors, keeps a pool of connections.

Made from _async/__init__.py by scripts/generate_sdk.py: change that one, and run it again.
"""
