"""The OpenAPI document: takes the routes and their types, returns the description and its page."""
