"""One turn: the loop that answers one user message, and the hooks that a runner fills in."""
