"""The HTTP door: REST and streams, thin, without rules of its own."""
