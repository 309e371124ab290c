"""packloom."""
