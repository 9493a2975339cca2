"""Real drivers against the pooler."""
