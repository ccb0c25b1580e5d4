"""`format("penstock")`: topics as batch and streaming DataFrames.

Owns what Spark asks of a format, and nothing that answers it. Found by Spark through `pyspark_penstock`, for which it
starts a process at a session's first read: what is imported up here, that read waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock.pipeline import daemon

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Every worker that plans imports this, whichever way it came to the source.
daemon.mend()


class PenstockSource(DataSource):
    """Topics of a node or of a data directory."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns that are read unless `.schema(...)` says others."""
        from penstock.pipeline.options import parsed
        from penstock.pipeline.schema import struct

        options = parsed(self.options)
        return struct(options.columns, headers=options.headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for `spark.read`."""
        from penstock.pipeline import batch

        return batch.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader for `spark.readStream`."""
        from penstock.pipeline import options
        from penstock.pipeline.stream import StreamReader

        options.for_stream(self.options)
        return StreamReader(options.parsed(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for `df.write`."""
        from penstock.pipeline import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer for `df.writeStream`."""
        from penstock.pipeline import sink

        return sink.stream_writer(self.options, schema, overwrite)
