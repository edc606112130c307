"""What the author of a backend builds on: its description, its two parts, lowering tables, regions and checks."""
