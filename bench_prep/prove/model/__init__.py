"""`bench-prep prove model`: whole engines."""
