"""Study of sampled metrics: ranks among drawn negatives beside exact ranks of the same models."""
