"""The analyzer's reports, each a function of the run's journal.

tables.py has Model Analyzer's tables byte for byte; page.py, detail.py and the other modules fill a
`Document` of tpx/report; files.py writes every format of it.
"""
