"""Code that the scripts share: measuring, peers, options, tables, pages, pictures."""
