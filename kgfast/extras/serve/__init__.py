"""``kgfast serve``: a trained model behind HTTP, which answers and never writes.

The server needs the extra ``serve`` (FastAPI, uvicorn).

    app -> questions -> engine
"""
