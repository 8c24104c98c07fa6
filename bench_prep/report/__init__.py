"""What is shown: the CSV's schema and store, the rows of a run, the tables, the overview."""
