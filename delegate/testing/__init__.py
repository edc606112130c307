"""What plugin authors test their backends with."""
