from django.db import models


class Shelf(models.Model):
    """Exists for its permission."""

    class Meta:
        managed = False
        permissions = [("wipe", "Can wipe")]

    def __str__(self) -> str:
        return "shelf"
