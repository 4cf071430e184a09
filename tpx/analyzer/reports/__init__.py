"""The analyzer's reports, each a function of the run's journal.

view.py holds a run with the options that its reports obey; tables.py has Model Analyzer's tables byte for
byte; page.py, detail.py and the other modules fill a `Document` of tpx/report; files.py writes every format.
"""
