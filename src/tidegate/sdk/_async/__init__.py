"""The client for asyncio: takes calls, gives awaitable answers, keeps one connection pool."""
