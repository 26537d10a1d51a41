"""An embedded Spark, set up for tidegate: nothing to install, nothing to configure."""

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

#: What a session of your own must have for streaming joins: the store that
#: `transformWithStateInPandas` keeps its state in.
REQUIRED_CONF: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

_CONF: Mapping[str, str] = {
    **REQUIRED_CONF,
    # Write what changed in a batch, not the store's files.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Nothing listens on, or is sent to, any other address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Workers outlive a batch, which is what lets them keep their engines.
    "spark.python.worker.reuse": "true",
    **{f"spark.executorEnv.{name}": value for name, value in SINGLE_THREADED.items()},
    # Spark shares workers between operators whose environment is equal. This setting reaches
    # mapInArrow's workers but not the stateful operator's, so that the latter stay apart and
    # find their engines again.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    "spark.api.mode": "classic",
}

_LOCAL = re.compile(r"local(?:\[(?P<cores>\*|[1-9]\d*)(?:,\s*\d+)?\])?")

#: Lines that Spark prints, whatever its log level, when nothing is wrong.
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
    """Start Spark inside this process, or give the session that already runs.

    Parameters
    ----------
    app_name
        What Spark calls the application.
    master
        Where it runs: by default here, on every core.
    config
        Further settings, which win over tidegate's own.

    Returns
    -------
    SparkSession
        A classic session. If one was running already it is that one: its SQL settings are
        changed, but settings of the JVM and of the workers are fixed once Spark has started.
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
    """Start the context, and first a JVM if there is none from an earlier session."""
    # Spark would start whichever `python3` is first on the PATH.
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
    """Pass on what the JVM and the Python workers write to stderr, except for noise."""
    with open(errors, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line) and sys.stderr is not None and not sys.stderr.closed:
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def _for_master(master: str) -> dict[str, str]:
    """Give the settings that depend on where Spark and this package are."""
    settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_logging()}"}
    if shipping.archive() is None:
        # Spark starts it before it looks into archives.
        settings |= {"spark.python.daemon.module": "tidegate.spark.daemon"}
    local = _LOCAL.fullmatch(master)
    if local is not None:
        cores = local["cores"] or "1"
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count()) if cores == "*" else cores
    return settings


def _logging() -> str:
    """Give the address of the settings for Spark's log."""
    archive, name = shipping.archive(), "log4j2.properties"
    if archive is not None:
        return f"jar:{archive.as_uri()}!/tidegate/spark/{name}"
    return Path(str(resources.files("tidegate.spark") / name)).as_uri()


def _text(value: object) -> str:
    """Write a setting as Spark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
