"""``kgfast serve``: a trained model behind HTTP, which answers and never writes.

The server needs the extra ``serve`` (FastAPI, uvicorn). Requests that arrive during a sweep share
the next one: no delay to collect requests, and no sweep for each client.

    app -> questions -> batching -> engine
"""
