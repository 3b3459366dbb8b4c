"""Serializers: takes Python values, returns bytes, and back; one for each type that a state may have."""
