"""What each plugin says of itself: names of its halves tell what is wrong with them."""

from broken_plugins.faults import crash, fail, hang
from delegate.backend.info import Availability, BackendInfo


def healthy():
    print("a library that prints when it is imported")  # noqa: T201
    return Availability(True, "", {"sum": "1.0"}, ("CPU",))


def _info(name, aot="Adder", runtime="Adds", probe=healthy, api_version=(1, 0), module="halves"):
    return BackendInfo(
        name, "Adds", f"broken_plugins.{module}:{aot}", f"broken_plugins.runtimes:{runtime}", probe, "pip install sum",
        api_version=api_version,
    )  # fmt: skip


HEALTHY = _info("healthy", "healthy")
FUTURE = _info("future", api_version=(9, 0))
ABSENT = _info("absent", "absent", probe=lambda: Availability(False, "no device is here"))
PROBE_ERROR = _info("probe_error", probe=fail)
PROBE_CRASH = _info("probe_crash", probe=crash)
PROBE_HANG = _info("probe_hang", probe=hang)
AOT_MISSING = _info("aot_missing", "NotThere")
AOT_CRASH = _info("aot_crash", module="import_crash")
AOT_HANG = _info("aot_hang", module="import_hang")
MADE_ERROR, MADE_CRASH, CHECK_ERROR, CHECK_CRASH, CHECK_HANG, CHECK_NONSENSE, CLAIMS_CRASH = (
    _info(name, name)
    for name in (
        "made_error",
        "made_crash",
        "check_error",
        "check_crash",
        "check_hang",
        "check_nonsense",
        "claims_crash",
    )
)
PREPROCESS_ERROR, PREPROCESS_CRASH, PREPROCESS_CRASH_AT_MUL, PREPROCESS_HANG, PREPROCESS_LEAVES, PREPROCESS_NONSENSE = (
    _info(f"preprocess_{way}", f"preprocess_{way}")
    for way in ("error", "crash", "crash_at_mul", "hang", "leaves", "nonsense")
)
INIT_ERROR, INIT_NONSENSE, PREPARE_ERROR, EXECUTE_ERROR, EXECUTE_NONSENSE, CLOSE_ERROR = (
    _info(name, name, runtime=name)
    for name in ("init_error", "init_nonsense", "prepare_error", "execute_error", "execute_nonsense", "close_error")
)
