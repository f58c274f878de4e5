"""Extras: what is built on the rest of kgfast, from the names that its rooms show.

    heads       output layers over very many outputs
    influence   training triples that influenced a prediction most
    paths       sums over the paths of a graph
    planning    memory and time of a ranking before it runs
    report      a run on one page of HTML
    search      search for values of a config
    serve       a model behind HTTP

None imports another, but report and serve what they show. Only the command line imports them.
"""
