"""Testing: takes operators, homes and folders; gives a harness, a server and a manual clock.

Shipped, so that users can test their pipelines the same way; imported by tests only. It keeps nothing.
"""
