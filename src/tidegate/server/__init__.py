"""The HTTP server: takes requests, gives answers, keeps everything that serves them open (`runtime`).

`routes` lists every endpoint, `app` authenticates and admits requests and maps errors to answers, one module
a noun in `api` has the endpoints, `runtime` opens and closes what they use, `serve` is the process.
"""
