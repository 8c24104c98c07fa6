"""What is shown: one run or many, as tables and as Markdown."""
