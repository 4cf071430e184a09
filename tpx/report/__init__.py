"""What the HTML reports of every wing are made of: axes, charts, tables, one page, and its PDF."""
