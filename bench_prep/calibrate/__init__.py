"""How often the harness is wrong on this machine: itself against itself, and planted slow-downs."""
