"""Extras built on the rest of kgfast, from its public names.

    heads       output layers over very many outputs
    influence   training triples that influenced a prediction most
    paths       sums over the paths of a graph
    report      a run on one page of HTML
    search      search for values of a config
    serve       a model behind HTTP

No extra imports another, except report and serve, which import what they show. Only the command
line imports extras.
"""
