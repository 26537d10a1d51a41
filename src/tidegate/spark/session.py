"""Start an embedded Spark that is configured for tidegate."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tidegate.errors import TidegateError
from tidegate.settings.values import quoted
from tidegate.spark import interpreter, java, shipping
from tidegate.spark.daemon import SINGLE_THREADED

#: Settings that a session of your own needs for streaming joins: the state store that
#: `transformWithStateInPandas` requires.
REQUIRED_CONF: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

_CONF: Mapping[str, str] = {
    **REQUIRED_CONF,
    # Write the changes of a batch, not the store's files.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Only use the loopback address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Workers outlive a batch, so that they can keep their engines.
    "spark.python.worker.reuse": "true",
    **{f"spark.executorEnv.{name}": value for name, value in SINGLE_THREADED.items()},
    # Spark shares workers between operators with equal environments. This setting reaches the
    # workers of mapInArrow but not those of the stateful operator. So the latter stay separate,
    # and before Spark 4.3 find their engines more often.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.api.mode": "classic",
}

_LOCAL = re.compile(r"local(?:\[(?P<cores>\*|[1-9]\d*)(?:,\s*\d+)?\])?")

#: Harmless lines that Spark prints whatever its log level is.
_NOISE = re.compile(
    rb"\s*$"
    rb"|WARNING: Using incubator modules: jdk\.incubator\.vector"
    rb"|WARNING: package sun\.security\.action not in java\.base"
    rb"|(Starting )?Streaming TransformWithStateInPandas Python worker"
)


def session(
    app_name: str = "tidegate",
    *,
    master: str = "local[*]",
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """Start Spark inside this process, or return the session that already runs.

    Parameters
    ----------
    app_name
        The application's name in Spark.
    master
        Where Spark runs: by default in this process, on every core.
    config
        Further settings, which override tidegate's own.

    Returns
    -------
    SparkSession
        A classic session. A session that already runs is returned with changed SQL settings;
        settings of the JVM and of the workers are fixed once Spark has started.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        raise TidegateError(
            f"session() starts Spark in this process, but SPARK_REMOTE is {quoted(remote)}: "
            "unset it, "
            "or use SparkSession.builder.remote(...) to reach that server"
        )
    settings = {
        **_CONF,
        **_for_master(master),
        **{key: _text(value) for key, value in (config or {}).items()},
        "spark.master": master,
        "spark.app.name": app_name,
    }
    if SparkSession.getActiveSession() is None:
        _start(SparkConf().setAll(list(settings.items())))
    return SparkSession.builder.config(map=dict(settings)).getOrCreate()


def _start(conf: SparkConf) -> None:
    """Start the Spark context, and a JVM if no earlier session left one."""
    # By default Spark would start whichever `python3` is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is not None:
        SparkContext.getOrCreate(conf)
        return
    java.use()
    errors, write = os.pipe()
    threading.Thread(target=_relay, args=(errors,), daemon=True, name="spark-stderr").start()
    try:
        gateway = launch_gateway(conf, {"stderr": write})
    finally:
        os.close(write)
    context = SparkContext(conf=conf, gateway=gateway)
    if _LOCAL.fullmatch(str(context.master)):
        context.pythonExec = interpreter.without_zips(context.pythonExec)


def _relay(errors: int) -> None:
    """Forward stderr of the JVM and the Python workers, without the harmless lines."""
    with open(errors, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line) and sys.stderr is not None and not sys.stderr.closed:
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def _for_master(master: str) -> dict[str, str]:
    """Return the settings that depend on the master and on where this package is installed."""
    settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_logging()}"}
    if shipping.archive() is None:
        # Not from an archive: Spark starts the daemon before it looks into archives.
        settings |= {"spark.python.daemon.module": "tidegate.spark.daemon"}
    local = _LOCAL.fullmatch(master)
    if local is not None:
        cores = local["cores"] or "1"
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count()) if cores == "*" else cores
    return settings


def _logging() -> str:
    """Return the address of the settings for Spark's log."""
    archive, name = shipping.archive(), "log4j2.properties"
    if archive is not None:
        return f"jar:{archive.as_uri()}!/tidegate/spark/{name}"
    return Path(str(resources.files("tidegate.spark") / name)).as_uri()


def _text(value: object) -> str:
    """Format a setting as Spark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
