"""What tests share: oracles, problems, small models and runs, and where things lie."""
