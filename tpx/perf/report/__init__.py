"""Output of a run's results: perf_analyzer's formats byte for byte, and the report `Document`.

* model.py, level_text.py: the finished run and perf_analyzer's text; files.py: writes the requested files
* page.py, plots.py, comparison.py: contents of documents; live.py: the dashboard
* json.py, recorders.py: files for programs, of a run and of single requests
"""
