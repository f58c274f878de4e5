"""What the scripts of this folder share: measuring, peers, options, tables, pages, pictures."""
