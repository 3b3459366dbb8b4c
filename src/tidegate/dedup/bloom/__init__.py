"""Bloom filters of segments: takes hashes of keys, returns which may be stored, keeps pages of bits."""
