"""``kgfast serve``: a trained model behind HTTP, which answers and never writes.

The server needs the extra ``serve`` (Starlette, h11). Requests that arrive during a sweep share the
next one: no delay to collect requests, and no sweep for each client.

    http -> hosts -> app -> questions -> batching -> engine
"""
