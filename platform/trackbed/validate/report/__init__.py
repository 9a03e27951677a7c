"""What came of a validation, in every format."""
