"""A service that runs with the plugin, seen from its log."""
