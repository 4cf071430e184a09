"""Reports of perf and analyze: one document, its charts, and the HTML page and the PDF made of it."""
