"""What tests need to command the world: takes orders, gives time that moves when told, keeps nothing on disk.

Shipped, so that pipelines of users can be tested the same way; imported by tests only.
"""
