"""A data set looked at: as the model sees it (`preview`), and what it comes to as a whole (`stats`)."""
