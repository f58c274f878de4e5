"""Walks of new users: each follows pages of docs/ literally, and notes how long each step took."""
