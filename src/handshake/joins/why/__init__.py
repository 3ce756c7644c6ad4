"""Why rows join, or do not: conditions one by one, and what became of each row."""
