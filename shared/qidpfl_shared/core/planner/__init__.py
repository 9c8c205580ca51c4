"""What a task costs before it runs: rounds played on paper, accuracy from the noise of the average, and the search."""
