"""Java classes that run inside the Spark process, and the formats they exchange with Python."""
