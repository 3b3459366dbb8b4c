"""The endpoints of `/api/v1`, one module for each noun, and the table of routes."""
