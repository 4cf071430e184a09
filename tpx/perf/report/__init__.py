"""Output of a run's results: perf_analyzer's formats byte for byte, and the report `Document`.

* level_text.py, console.py, profile_export.py: perf_analyzer's text and files
* page.py, plots.py, breakdown.py, comparison.py: contents of documents; live.py: the dashboard
* json.py, recorders.py: files for programs, of a run and of single requests
* model.py: the finished run, and the formats of its numbers and names; files.py: writes the requested files
"""
