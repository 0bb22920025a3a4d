"""The Django project around the shop."""
