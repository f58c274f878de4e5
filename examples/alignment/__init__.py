"""Entity alignment by cosine and by CSLS, streamed."""
