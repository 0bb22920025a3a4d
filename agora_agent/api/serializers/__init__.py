"""Bodies and answers, camelCase on the wire and snake_case here."""
