"""Tests of server/websocket."""
