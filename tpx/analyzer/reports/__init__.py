"""The analyzer's reports, each a function of the run's journal.

view.py holds a run with the options that affect its reports; tables.py reproduces Model Analyzer's
tables byte for byte; page.py, detail.py and the other modules fill a `Document` of tpx/report; files.py
writes all formats.
"""
