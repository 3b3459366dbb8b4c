"""The JSON of HTTP answers, and of the requests that both sides write: one struct for each, by noun.

The server encodes its answers from these structs and describes them in OpenAPI with them, reads the worker's
report into them, and `scripts/generate_sdk_types.py` writes the client's types from them. On the wire a field
has its name in camel case, and fields have the order of the struct. One that may be missing has `UnsetType`
in its type.
"""
