"""``kgfast serve``: a trained model behind HTTP, which answers and never writes.

Needs the extra ``serve`` (Starlette, h11). Requests that come while a sweep runs share the next
one: there is no delay to wait for company, and no sweep for each client.

    http -> hosts -> app -> questions -> batching -> engine
"""
