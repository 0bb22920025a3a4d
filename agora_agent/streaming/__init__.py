"""What everybody sees: the numbered frames of a run's stream, and the hub that tells its readers."""
