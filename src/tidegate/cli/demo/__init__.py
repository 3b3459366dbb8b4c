"""The demo of `tidegate up --demo`: its tables, topics, pipelines, writers and panels."""
