"""What is kept: columns, one table file, reading."""
