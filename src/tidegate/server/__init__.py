"""The HTTP door: takes requests, gives answers and errors in one shape, keeps nothing but the running parts.

`routes` lists every endpoint, `app` puts authorisation and the error mapping around them, one module a noun
holds the endpoints, `running` opens and closes the parts behind them, `serve` is the process.
"""
