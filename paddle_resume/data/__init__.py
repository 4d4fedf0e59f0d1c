"""Where the training stands in its data, and how to stand there again without reading it."""
