"""A run's results: perf_analyzer's formats byte for byte, and the report's `Document`, filled.

* level_text.py, console.py, csv.py, profile_export.py: perf_analyzer's text and files
* page.py, grids.py, plots.py, breakdown.py, comparison.py: what fills documents; live.py: the dashboard
* json.py, recorders.py, hdr.py: files for programs, of a run and of single requests
* model.py: the finished run, its digits and names; files.py: writes what was asked for
"""
