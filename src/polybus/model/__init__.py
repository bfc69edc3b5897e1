"""Values that every room shares; they import nothing but the errors."""
