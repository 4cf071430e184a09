"""Reports of perf and analyze: both fill a `Document`, and renderers turn it into files.

* document.py, chart.py, table.py: the document's content: statements, tables of typed columns, charts, notes
* digits.py: formatting of figures, used everywhere
* html.py with layout.py: HTML pages, also of the server, and drawings; pdf.py: A4 pages by typst
* ci.py: Markdown for the page of a CI job, JUnit XML; text.py: terminals and CSV
* files.py: writing files, each completely or not at all
"""
