"""How both preparations grow with each setting: one axis at a time around the reference."""
