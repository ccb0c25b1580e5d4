"""What a pipeline's source asks of Spark's."""

from __future__ import annotations

from penstock.pipeline.plan.document import Place, Source
from penstock.pipeline.run.reading import source_options


def test_few_rows_wait_for_company_only_where_a_source_says_so() -> None:
    place = Place(path="data")
    assert "minOffsetsPerTrigger" not in source_options(Source(topic="t"), place, "*", "p")
    options = source_options(Source(topic="t", min_rows=500, max_wait="2m"), place, "*", "p")
    assert (options["minOffsetsPerTrigger"], options["maxTriggerDelay"]) == ("500", "2m")
