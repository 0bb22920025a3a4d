"""For programs that read a run's stream. Needs neither Django nor settings."""
