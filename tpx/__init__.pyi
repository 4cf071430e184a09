# The public names, which `__init__.py` imports when they are used.
from tpx.api.analyzing import AnalysisRun as AnalysisRun
from tpx.api.analyzing import analyze as analyze
from tpx.api.measuring import PerfRun as PerfRun
from tpx.api.measuring import RunComparison as RunComparison
from tpx.api.measuring import compare as compare
from tpx.api.measuring import measure as measure
from tpx.api.measuring import measure_async as measure_async
from tpx.api.serving import RunningServer as RunningServer
from tpx.api.serving import serve as serve

__version__: str
__all__: list[str]
