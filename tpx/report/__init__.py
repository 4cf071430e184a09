"""Reports of perf and analyze: one `Document` that both fill, and what is made of it.

* document.py, chart.py, table.py: the document in values: statements, tables of typed columns, charts, notes
* digits.py: how figures are written for people, everywhere
* html.py with layout.py, scales.py, styles.py: the page and its drawings; pdf.py: A4 pages by typst
* markdown.py: pages of CI jobs; text.py: terminals and CSV; junit.py: test cases of CI servers
* files.py: writing files, each whole or not at all
"""
